"""The compute port's contract on answers that a grammar holds: every adapter, beside free rows, and when it fails."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from adapters.fake.options import EOS_ID
from adapters.fake.tokenizer import fake_vocabulary
from adapters.llguidance.compiler import LlguidanceCompiler
from application.ports.compute import DecodeStart, Draft, LoadedModel
from application.ports.token_constraint import AllowedTokens, ConstraintCompiler, TokenConstraint
from domain.errors import ComputeFailed
from domain.ids import ModelId, SequenceId
from domain.request.grammar import choice_grammar
from domain.request.sampling import SamplingParams
from tests.support.mlx.contract_models import GREEDY, OTHER, PROMPT, every_model, generate, start, step
from tests.support.patience import PATIENCE_S
from tests.support.stores.state_replay import open_at
from tests.support.text.toy_constraints import FakeCompiler, FakeConstraint

COMPILERS = {"fake": FakeCompiler, "llguidance": LlguidanceCompiler}
ANSWERS = frozenset({b"yes", b"yet another", b"no"})
SAMPLINGS = {
    "greedy": GREEDY,
    "drawn": SamplingParams(temperature=1.5),
    "top-p": SamplingParams(temperature=1, top_p=0.3),
    "top-k": SamplingParams(temperature=1, top_k=2),
    "min-p": SamplingParams(temperature=1, min_p=0.9),
    "penalised": SamplingParams(temperature=0, frequency_penalty=2, presence_penalty=2, repetition_penalty=5),
    "biased away": SamplingParams(temperature=0, logit_bias=((ord("y"), -100.0), (ord("n"), -100.0))),
    "with logprobs": SamplingParams(temperature=0, num_logprobs=5),
}


@pytest.fixture
def workers() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


class Held(FakeConstraint):
    """Keeps the tokens that it accepted."""

    def __init__(self, workers: Executor, model: LoadedModel, answers: frozenset[bytes] = ANSWERS) -> None:
        super().__init__(workers, answers, model.description.eos_token_ids, lambda: None)
        self.accepted: list[int] = []

    def accept(self, token_id: int) -> None:
        super().accept(token_id)
        self.accepted.append(token_id)


class Failing(Held):
    """Fails after so many tokens, where `where` says."""

    def __init__(
        self,
        workers: Executor,
        model: LoadedModel,
        num_good: int,
        where: str,
        answers: frozenset[bytes] = ANSWERS,
    ) -> None:
        super().__init__(workers, model, answers)
        self._num_good = num_good
        self._where = where

    def accept(self, token_id: int) -> None:
        if self._where == "accept" and len(self.accepted) == self._num_good:
            raise ComputeFailed("cannot accept")
        super().accept(token_id)

    def allowed(self) -> AllowedTokens:
        if self._where == "allowed" and len(self.accepted) == self._num_good:
            failed: Future[AllowedTokens] = Future()
            failed.set_exception(ComputeFailed("cannot say"))
            return failed.result()
        return super().allowed()


def hold(
    model: LoadedModel,
    constraint: TokenConstraint,
    sampling: SamplingParams = GREEDY,
    prompt: tuple[int, ...] = PROMPT,
    min_tokens: int = 0,
) -> SequenceId:
    id, ends = open_at(model, prompt), model.description.eos_token_ids
    model.start_decode(
        id,
        prompt[-1:],
        DecodeStart(prompt, sampling, seed=1, min_tokens=min_tokens, eos_token_ids=ends, constraint=constraint),
    )
    return id


def answer(model: LoadedModel, id: SequenceId, beside: tuple[SequenceId, ...] = ()) -> bytes:
    """Up to the end token."""
    said = b""
    for _ in range(40):
        result, *others = model.decode([id, *beside])
        assert result.error is None, result.error
        assert not any(other.error for other in others)
        if result.token_ids[0] in model.description.eos_token_ids:
            return said
        said += bytes([result.token_ids[0]])
    raise AssertionError(f"no end after {said!r}")


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_an_answer_is_what_the_grammar_allows(model: LoadedModel, workers: Executor, sampling: SamplingParams):
    constraint = Held(workers, model)
    id = hold(model, constraint, sampling)
    said = answer(model, id)
    model.close([id])
    assert said in ANSWERS
    assert bytes(constraint.accepted[: len(said)]) == said


@pytest.mark.exact
def test_free_rows_beside_it_are_as_they_were(model: LoadedModel, workers: Executor):
    alone = generate(model, 8)
    free = start(model, PROMPT)
    held = hold(model, Held(workers, model), prompt=OTHER)
    also_held = hold(model, Held(workers, model, frozenset({b"0123456789"})), SamplingParams(temperature=1))
    output: list[int] = []
    said = b""
    for _ in range(8):
        first, second, third = model.decode([held, free, also_held])
        assert first.error is None
        output.append(second.token_ids[0])
        said += bytes([third.token_ids[0]])
    model.close([free, held, also_held])
    assert output == alone
    assert said == b"01234567"


def test_rows_join_and_leave_while_a_grammar_holds_one(model: LoadedModel, workers: Executor):
    long = Held(workers, model, frozenset({b"abcdefghijklmnopqrstuvwxyz"}))
    held, said = hold(model, long), b""
    for number in range(20):
        beside = start(model, OTHER) if number % 5 == 0 else None
        said += bytes([model.decode([held, *([beside] if beside is not None else [])])[0].token_ids[0]])
        if beside is not None:
            said += bytes([model.decode([held, beside])[0].token_ids[0]])
            model.close([beside])
    model.close([held])
    assert said == b"abcdefghijklmnopqrstuvwx"


def test_the_end_comes_before_min_tokens_where_nothing_else_may(model: LoadedModel, workers: Executor):
    id = hold(model, Held(workers, model), min_tokens=30)
    assert answer(model, id) in ANSWERS
    model.close([id])


def test_min_tokens_keep_an_answer_going_where_it_may(model: LoadedModel, workers: Executor):
    eager = replace(GREEDY, logit_bias=tuple((eos, 100.0) for eos in model.description.eos_token_ids))
    constraint = Held(workers, model, frozenset({b"a", b"ab", b"abc", b"abcd"}))
    id = hold(model, constraint, eager, min_tokens=3)
    assert answer(model, id) == b"abc"
    model.close([id])


def test_logprobs_are_over_what_the_grammar_allows(model: LoadedModel, workers: Executor):
    id = hold(model, Held(workers, model, frozenset({b"ab", b"ac"})), SamplingParams(temperature=0, num_logprobs=4))
    forced, chosen = step(model, id), step(model, id)
    model.close([id])
    assert len(forced.logprobs) == 1
    assert len(chosen.logprobs) == 1
    assert forced.logprobs[0].top == ((ord("a"), pytest.approx(0, abs=1e-6)),)
    assert {token for token, _ in chosen.logprobs[0].top} == {ord("b"), ord("c")}


@pytest.mark.parametrize("where", ["accept", "allowed"])
@pytest.mark.parametrize("num_good", [1, 2])
@pytest.mark.exact
def test_a_failing_grammar_is_its_rows_failure(model: LoadedModel, workers: Executor, where: str, num_good: int):
    alone = generate(model, 8)
    free, failing = start(model, PROMPT), hold(model, Failing(workers, model, num_good, where), prompt=OTHER)
    output: list[int] = []
    errors: list[Exception] = []
    for _ in range(8):
        results = model.decode([free, failing] if not errors else [free])
        output.append(results[0].token_ids[0])
        errors += [result.error for result in results if result.error is not None]
    assert output == alone
    assert [type(error) for error in errors] == [ComputeFailed]
    assert model.open_ids() == {free}
    model.close([free])


@every_model
@pytest.mark.parametrize("is_wrong", [False, True])
@pytest.mark.exact
def test_drafts_are_held_by_the_grammar(model: LoadedModel, workers: Executor, is_wrong: bool):
    """Also drafts that go beyond its end, or leave it. Beside it is a free row."""
    alone = generate(model, 12)
    answers = frozenset({b"abcdefgh", b"abcdefxy"})
    id, free = hold(model, Held(workers, model, answers)), start(model, PROMPT)
    said: list[int] = []
    output: list[int] = []
    num_steps, guess = 0, b"abczzzzz" if is_wrong else b"abcdefghijkl"
    while not model.description.eos_token_ids & set(said):
        drafts = {id: Draft(tuple(guess[len(said) :])), free: Draft(tuple(alone[len(output) :]))}
        first, second = model.decode([id, free], drafts)
        assert first.error is None
        said += first.token_ids
        output += second.token_ids
        num_steps += 1
    model.close([id, free])
    assert bytes(said[:-1]) in answers
    assert num_steps < len(said)
    assert output[:12] == alone[: len(output)]


@pytest.mark.parametrize(("where", "guess"), [("accept", b"abccc"), ("allowed", b"ab\0\0\0")])
@pytest.mark.exact
def test_no_token_follows_a_grammar_that_fails_inside_a_draft(
    model: LoadedModel, workers: Executor, where: str, guess: bytes
):
    """The guesses are tokens that a row without a working grammar is given."""
    alone = generate(model, 8)
    constraint = Failing(workers, model, 2, where, frozenset({b"abcdef"}))
    free, failing = start(model, PROMPT), hold(model, constraint, prompt=OTHER)
    output: list[int] = []
    said, errors = b"", list[Exception]()
    while not errors or len(output) < 8:
        drafts = {free: Draft(tuple(alone[len(output) :])), failing: Draft(tuple(guess[len(said) :]))}
        first, *others = model.decode([free, failing] if not errors else [free], drafts)
        output += first.token_ids
        said += b"".join(bytes(other.token_ids) for other in others)
        errors += [other.error for other in others if other.error is not None]
    model.close([free])
    assert output[:8] == alone
    assert b"abc".startswith(said)
    assert [type(error) for error in errors] == [ComputeFailed]


def test_a_grammar_that_fails_at_once_fails_the_start(model: LoadedModel, workers: Executor):
    before = model.open_ids()
    with pytest.raises(ComputeFailed):
        hold(model, Failing(workers, model, 0, "allowed"))
    assert model.open_ids() == before


MODEL = ModelId("toy")
OTHER_END = 259
ENDS = frozenset({EOS_ID, OTHER_END})
Choose = Callable[..., TokenConstraint]


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


AWKWARD = "\"'\\\n\t/{}[]<|end|>é漢😀%json\x01\x7f\u2028"


@pytest.mark.parametrize(
    ("choices", "said", "expected"),
    [
        (("yes", "yet", "no", 'q"\\\n/é'), "", {ord("y"), ord("n"), ord("q")}),
        (("yes", "yet", "no"), "ye", {ord("s"), ord("t")}),
        ((AWKWARD,), AWKWARD, ENDS),
        (("yes", "no"), "no", ENDS),
        (("a", "ab"), "a", {ord("b"), *ENDS}),
    ],
    ids=["first", "shared", "awkward", "complete", "may go on"],
)
def test_the_mask_is_what_may_follow(choose: Choose, choices: tuple[str, ...], said: str, expected: set[int]):
    constraint = choose(*choices)
    assert say(constraint, said) == expected
    assert constraint.allowed().must_end == (expected == ENDS)


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
