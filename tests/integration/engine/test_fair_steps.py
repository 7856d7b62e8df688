"""The order in which prompts and streams are served while prompts prefill."""

from dataclasses import dataclass, field
from itertools import pairwise

from adapters.fake.options import FakeOptions
from application.ports.engine import Tokens
from domain.ids import RequestId, SequenceId
from domain.priority import Priority
from domain.scheduling.queue_waits import QueueWaits
from domain.scheduling.step_values import StepLimits
from tests.support.engines.stepped_engine import GRID, SteppedEngine

LONG = range(32, 32 + 20 * GRID)
SHORT = range(900, 910)


@dataclass
class Calls:
    """What the model was asked, in order, and what had been handed over by then."""

    engine: SteppedEngine | None = None
    seen: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])

    def __call__(self, operation: str, id: SequenceId | None, count: int) -> None:
        if id is not None and operation in ("prefill", "start_decode", "decode") and self.engine is not None:
            num_told = sum(isinstance(item, Tokens) for batch in self.engine.batches for *_, item in batch.items)
            self.seen.append((operation, id, num_told))

    def of(self, id: int) -> list[int]:
        """At which calls it was."""
        return [at for at, (_, other, _) in enumerate(self.seen) if other == id]


def busy_engine(limits: StepLimits | None = None) -> tuple[SteppedEngine, Calls]:
    calls = Calls()
    engine = SteppedEngine(FakeOptions(eos_every=0, vocab_size=2_000, hook=calls), limits=limits)
    calls.engine = engine
    return engine, calls


def test_decoded_tokens_are_delivered_before_the_next_chunk_begins() -> None:
    engine, calls = busy_engine()
    engine.submit("running", SHORT, 40)
    engine.step(8)
    engine.submit("long", LONG, 1)
    engine.run()
    for before, (operation, id, num_told) in pairwise(calls.seen):
        if operation == "prefill" and id == 1 and before[0] == "decode":
            assert num_told == before[2] + 1, "a token waits for somebody else's chunk"


def test_running_streams_have_a_quarter_of_the_time() -> None:
    """By the clock that the toy's operations move."""

    def hook(operation: str, id: SequenceId | None, _count: int) -> None:
        calls(operation, id, _count)
        if operation in ("prefill", "decode") and calls.engine is not None:
            calls.engine.clock.advance(0.88 if operation == "prefill" else 0.1)

    calls = Calls()
    engine = calls.engine = SteppedEngine(FakeOptions(eos_every=0, vocab_size=2_000, hook=hook))
    engine.submit("running", SHORT, 100)
    engine.step(8)
    num_before = len(calls.seen)
    engine.submit("long", LONG, 1)
    engine.run()
    last = calls.of(1)[-2]
    between = calls.seen[num_before:last]
    num_chunks = sum(operation == "prefill" for operation, *_ in between)
    num_tokens = sum(operation == "decode" for operation, *_ in between)
    assert 2.8 <= num_tokens / num_chunks <= 3.2


def test_cancelled_short_prompts_do_not_hold_turns_for_ever() -> None:
    """Each is cancelled before it is restored, when the next one is here."""
    engine, calls = busy_engine()
    engine.submit("long", LONG)
    engine.step(3)
    num_before = len(calls.seen)
    for number in range(3 * StepLimits(1, GRID, GRID).max_held):
        engine.submit(str(number), SHORT)
        engine.step()
        engine.loop.cancel(RequestId(str(number)))
    assert len(calls.seen) - num_before >= 2


def test_a_request_that_fails_in_the_queue_lets_the_next_one_move_at_once() -> None:
    """A step in which a sequence ended made progress: the next one follows at once."""
    engine = SteppedEngine(FakeOptions(eos_every=0, vocab_size=2_000), waits=QueueWaits(60))
    engine.guard.admits = False
    engine.submit("a", SHORT)
    engine.step()
    engine.clock.advance(31)
    engine.submit("b", SHORT)
    engine.step()
    assert not engine.loop.step()
    engine.clock.advance(30)
    assert engine.loop.step()
    assert engine.end("a").error is not None
    assert not engine.loop.step()
    engine.guard.admits = True
    engine.run()
    assert len(engine.tokens("b")) == 12


def test_no_turn_is_held_for_a_cancelled_prompt() -> None:
    engine, _ = busy_engine()
    engine.submit("long", LONG)
    engine.step(3)
    engine.submit("short", SHORT)
    engine.step()
    assert engine.loop.wakes_soon
    for id in ("long", "short"):
        engine.loop.cancel(RequestId(id))
    engine.loop.plan_idle()
    assert not engine.loop.wakes_soon, "an idle engine looks two hundred times a second"


def test_a_request_does_not_follow_one_that_waits_for_its_place() -> None:
    """The earlier one would compute the same prompt, and is in the queue until the later one has ended."""
    engine, _ = busy_engine(StepLimits(1, GRID, GRID))
    engine.submit("running", SHORT, 12)
    engine.step(6)
    engine.submit("batch", LONG, 2, priority=Priority.BATCH)
    engine.submit("question", LONG, 2)
    engine.run()
    assert engine.tokens("question") == engine.tokens("batch")
    assert len(engine.tokens("question")) == 2
