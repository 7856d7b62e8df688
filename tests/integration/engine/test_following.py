"""A prompt that a running request computes is not computed twice, and waiting for it takes no memory and delays none.

Counted in steps of the engine. What is waited for is a running prefill of at least the same priority: whoever waits
keeps its place in the queue and goes on as soon as that has passed the position where the two part, or runs no more.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, cast

import pytest

from adapters.fake.options import LAYOUTS, FakeOptions
from application.events import PrefillChunkComputed, PrefixAwaited, RequestAdmitted, RequestPreempted
from domain.ids import SequenceId
from domain.priority import Priority
from domain.request.grammar import choice_grammar
from domain.scheduling.plan_step import is_following, plan_step
from domain.scheduling.queue_waits import QueueWaits, WaitReason
from domain.scheduling.sequence import Phase
from domain.scheduling.step_values import SequenceView, StepLimits
from tests.support.engines.sequence_views import view_of
from tests.support.engines.stepped_engine import BLOCK, GRID, SteppedEngine
from tests.support.processes.held_workers import HeldWorkers
from tests.support.text.toy_constraints import FakeCompiler

SHARED = tuple(range(500, 500 + 12 * GRID))
QUESTION = tuple(range(32, 42))
KINDS = pytest.mark.parametrize("layout", ["attention", "windowed", "hybrid", "everything"])


def engine_of(layout: str = "attention", places: int = 4) -> SteppedEngine:
    options = FakeOptions(eos_every=0, vocab_size=4_000, layout=LAYOUTS[layout])
    return SteppedEngine(options, limits=StepLimits(places, GRID, GRID))


def steps_until(engine: SteppedEngine, is_so: Callable[[], bool], most: int = 60) -> int:
    for number in range(most):
        if is_so():
            return number
        engine.step()
    raise AssertionError(f"not within {most} steps")


def num_computed(engine: SteppedEngine, ids: Iterable[str]) -> int:
    wanted = set(ids)
    return sum(one.end - one.start for one in engine.events(PrefillChunkComputed) if one.id in wanted)


@KINDS
def test_requests_that_come_together_compute_what_they_share_once(layout: str) -> None:
    engine = engine_of(layout, places=8)
    ids = [str(number) for number in range(8)]
    for number, id in enumerate(ids):
        engine.submit(id, (*SHARED, *range(100 * number, 100 * number + 9)), 4)
    engine.run()
    assert num_computed(engine, ids) == len(SHARED) + 8 * 9


@KINDS
@pytest.mark.parametrize("num_prompt", [BLOCK - 3, 2 * GRID + 9, len(SHARED)])
def test_further_choices_follow_the_first_one(layout: str, num_prompt: int) -> None:
    engine = engine_of(layout)
    engine.submit("a", SHARED[:num_prompt], 4, num_choices=4)
    engine.run()
    further = ["a.1", "a.2", "a.3"]
    assert [num_computed(engine, [id]) for id in ("a", *further)] == [num_prompt, 1, 1, 1]
    assert [(one.id, one.owner) for one in engine.events(PrefixAwaited)] == [(id, "a") for id in further]
    assert [engine.end("a", choice).usage.reused_tokens for choice in range(4)] == [0, *[num_prompt - 1] * 3]


def test_choices_compute_their_prompt_each_where_nothing_is_reused() -> None:
    engine = SteppedEngine(FakeOptions(eos_every=0, vocab_size=4_000), reuses=False)
    engine.submit("a", SHARED, 4, num_choices=3)
    engine.run()
    assert num_computed(engine, ["a", "a.1", "a.2"]) == 3 * len(SHARED)


@KINDS
def test_who_follows_one_that_is_preempted_goes_on_without_its_answer(layout: str) -> None:
    """It waited for the whole answer of the one that it followed: 416 steps instead of 13."""
    engine = engine_of(layout, places=2)
    engine.submit("running", QUESTION, 40)
    engine.submit("owner", (*SHARED, 1), 400, priority=Priority.BATCH)
    engine.submit("other", (*SHARED, 2), 4, priority=Priority.BATCH)
    engine.step(8)
    engine.guard.preempts = lambda _step, active: len(active) > 1
    steps_until(engine, lambda: bool(engine.events(RequestPreempted)), 4)
    engine.guard.preempts = lambda _step, _active: False
    assert [one.id for one in engine.events(RequestPreempted)] == ["owner"]
    steps_until(engine, lambda: len(engine.tokens("running")) == 40)
    assert steps_until(engine, lambda: bool(engine.tokens("other"))) < 20
    assert len(engine.tokens("owner")) < 100
    engine.run()


def test_a_short_question_behind_who_waits_waits_for_nobody() -> None:
    """Who followed held a place in the batch: with all places taken so, a question waited 397 steps instead of 4."""
    engine = engine_of(places=3)
    engine.submit("owner", (*SHARED, 1), 400)
    engine.step(2)
    for number in range(4):
        engine.submit(f"other {number}", (*SHARED, 2, number), 400)
    engine.step(2)
    engine.submit("question", QUESTION, 4)
    assert steps_until(engine, lambda: bool(engine.tokens("question"))) <= 6
    assert [one.id for one in engine.events(RequestAdmitted)] == ["owner", "question"]
    engine.run()


def test_who_compiles_a_grammar_is_followed_by_nobody() -> None:
    workers = HeldWorkers()
    engine = engine_of()
    engine.loop._constraints = FakeCompiler(cast(Executor, workers))
    engine.submit("owner", (*SHARED, 1), 4, grammar=choice_grammar(["yes", "no"], "x"), eos_token_ids=frozenset({2}))
    engine.step(2)
    engine.submit("other", (*SHARED, 2), 4)
    assert steps_until(engine, lambda: bool(engine.tokens("other"))) < 30
    assert not engine.tokens("owner")
    workers.release()
    engine.run()


def view(id: int, phase: Phase, **changes: Any) -> Any:
    return view_of(id, phase, 500, **changes)


def following(owner: SequenceView, **changes: Any) -> Sequence[Any]:
    return owner, view(2, Phase.QUEUED, follows=owner.id, **changes)


@pytest.mark.parametrize(
    ("views", "follows"),
    [
        (following(view(1, Phase.PREFILLING)), True),
        (following(view(1, Phase.RESTORING)), True),
        (following(view(1, Phase.RESTORING, is_held=True)), False),
        (following(view(1, Phase.PREEMPTED)), False),
        (following(view(1, Phase.QUEUED)), False),
        (following(view(1, Phase.DECODING)), False),
        (following(view(1, Phase.PREFILLING, priority=Priority.BATCH)), False),
        (following(view(1, Phase.PREFILLING, priority=Priority.BATCH), priority=Priority.BATCH), True),
        (following(view(1, Phase.PREFILLING), priority=Priority.BATCH), True),
    ],
)
def test_only_a_running_prefill_of_at_least_the_same_priority_is_waited_for(
    views: Sequence[Any], follows: bool
) -> None:
    plan = plan_step(views, StepLimits(4, GRID, GRID))
    assert is_following(views[-1], views) == follows
    assert (SequenceId(2) in plan.admit) != follows


def test_of_two_that_would_compute_the_same_block_the_first_is_admitted() -> None:
    block, other = (cast(Any, bytes([number]) * 32) for number in (1, 2))
    views = [view(at, Phase.QUEUED, next_block=hash) for at, hash in enumerate((block, block, other, None, None))]
    assert plan_step(views, StepLimits(8, GRID, GRID)).admit == (0, 2, 3, 4)


def test_nobody_is_admitted_before_it_was_looked_up() -> None:
    views = [view(1, Phase.QUEUED, is_looked_up=False), view(2, Phase.QUEUED)]
    assert plan_step(views, StepLimits(4, GRID, GRID)).admit == (2,)


def test_what_it_waits_for_is_reported() -> None:
    waits = QueueWaits()
    engine = SteppedEngine(FakeOptions(eos_every=0, vocab_size=4_000), waits=waits)
    engine.submit("owner", (*SHARED, 1), 4)
    engine.step(2)
    engine.submit("other", (*SHARED, 2), 4)
    engine.step()
    assert waits.counts == {WaitReason.PREFIX.value: 1}
    engine.run()
