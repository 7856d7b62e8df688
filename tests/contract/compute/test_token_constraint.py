"""The token constraint port's contract, over the toy model's byte tokens."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest

from adapters.fake.options import EOS_ID
from adapters.fake.tokenizer import fake_vocabulary
from application.ports.token_constraint import AllowedTokens, ConstraintCompiler, TokenConstraint
from domain.errors import ComputeFailed
from domain.ids import ModelId
from domain.request.grammar import choice_grammar
from tests.support.mlx.constraint_compilers import COMPILERS
from tests.support.patience import PATIENCE_S

MODEL = ModelId("toy")
OTHER_END = 259
ENDS = frozenset({EOS_ID, OTHER_END})
Choose = Callable[..., TokenConstraint]


@pytest.fixture
def workers() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture(params=COMPILERS)
def compiler(request: pytest.FixtureRequest, workers: Executor) -> ConstraintCompiler:
    compiler = COMPILERS[request.param](workers)
    compiler.attach(MODEL, fake_vocabulary())
    return compiler


@pytest.fixture
def choose(compiler: ConstraintCompiler) -> Choose:
    return lambda *choices: compiler.compile(MODEL, choice_grammar(choices, "choice"), ENDS)


def ids_of(allowed: AllowedTokens) -> set[int]:
    return {id for id in range(len(allowed.mask) * 8 + 8) if allowed.allows(id)}


def say(constraint: TokenConstraint, text: str) -> set[int]:
    for byte in text.encode():
        constraint.accept(byte)
    return ids_of(constraint.allowed())


def test_the_mask_is_what_may_follow(choose: Choose):
    constraint = choose("yes", "yet", "no", 'q"\\\n/é')
    assert ids_of(constraint.allowed()) == {ord("y"), ord("n"), ord("q")}
    assert not constraint.allowed().must_end
    assert say(constraint, "ye") == {ord("s"), ord("t")}


def test_every_character_can_be_said(choose: Choose):
    awkward = "\"'\\\n\t/{}[]<|end|>é漢😀%json\x01\x7f\u2028"
    constraint = choose(awkward)
    assert say(constraint, awkward) == ENDS


def test_a_complete_answer_must_end(choose: Choose):
    constraint = choose("yes", "no")
    assert say(constraint, "no") == ENDS
    assert constraint.allowed().must_end


def test_an_answer_that_may_go_on_may_also_end(choose: Choose):
    constraint = choose("a", "ab")
    assert say(constraint, "a") == {ord("b"), *ENDS}
    assert not constraint.allowed().must_end


@pytest.mark.parametrize("end", sorted(ENDS))
def test_after_the_end_there_is_only_the_end(choose: Choose, end: int):
    constraint = choose("a", "ab")
    constraint.accept(ord("a"))
    for _ in range(3):
        constraint.accept(end)
        assert ids_of(constraint.allowed()) == ENDS
        assert constraint.allowed().must_end


@pytest.mark.parametrize("token", [ord("x"), EOS_ID, 400, -1])
def test_a_token_that_is_not_allowed_is_refused(choose: Choose, token: int):
    constraint = choose("yes")
    with pytest.raises(ComputeFailed):
        constraint.accept(token)


def test_each_sequence_has_its_own_place(choose: Choose):
    first, second = choose("yes", "no"), choose("yes", "no")
    assert say(first, "ye") == {ord("s")}
    assert say(second, "n") == {ord("o")}
    assert say(first, "s") == ENDS


def test_readiness_is_reported_once_it_is_there(compiler: ConstraintCompiler, choose: Choose):
    woken = threading.Event()
    compiler.wake_with(woken.set)
    constraint = choose("yes")
    assert woken.wait(PATIENCE_S)
    assert constraint.poll()


def test_only_a_loaded_model_has_constraints(compiler: ConstraintCompiler, choose: Choose):
    kept = choose("yes")
    compiler.detach(MODEL)
    with pytest.raises(ComputeFailed):
        choose("yes")
    assert say(kept, "yes") == ENDS


def test_an_answer_that_nothing_could_end_is_refused(compiler: ConstraintCompiler):
    with pytest.raises(ComputeFailed):
        compiler.compile(MODEL, choice_grammar(["yes"], "choice"), frozenset())
