"""The shared tier: what a request loses to it at most, when it is not asked, what is written, and how it recovers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from adapters.fake import LAYOUTS, FakeClock
from application.events import FaultObserved, SharedStoreUsed
from application.ports.shared_store import SharedFailure, SharedHint, SharedStoreError
from application.services.prefix.shared.access import MAX_PAUSE_S, MIN_PAUSE_S, SharedAccess
from application.services.prefix.shared.tier import (
    ASSUMED_TOKENS_PER_S,
    BYTES_PER_CALL,
    MAX_CALLS,
    SharedAsk,
    SharedTier,
    calls_of,
)
from domain.id_row import IdRow
from domain.ids import RequestId
from domain.prefix.explanation import StopReason
from domain.prefix.hashing import BlockChain, snapshot_key
from domain.prefix.index import PrefixMatch, ReuseRules
from domain.prefix.prompt_content import BlockGrid
from domain.prefix.record import Record
from tests.support.processes.lanes import HeldLane
from tests.support.stores.shared_stores import (
    DEADLINE_S,
    FaultySharedStore,
    SharedFaults,
    SharedMemory,
    pump,
    stepped_tier,
)
from tests.support.stores.store_records import BLOCK_TOKENS, chain, namespace_of, snapshot
from tests.support.telemetry.recording import RecordingEvents

ONE = namespace_of("one")
RULES = {name: ReuseRules.of(LAYOUTS[name], BlockGrid(BLOCK_TOKENS, 32)) for name in ("attention", "hybrid")}
NO_MATCH = PrefixMatch(0, (), 0, StopReason.NEVER_SEEN)


@dataclass
class Bench:
    """A tier that is available, on a store with faults; calls are made by `lane`."""

    max_bytes: int = 1 << 30
    faults: SharedFaults = field(default_factory=SharedFaults)

    def __post_init__(self) -> None:
        self.memory, self.events, self.clock = SharedMemory(), RecordingEvents(), FakeClock()
        self.lane = HeldLane(max_pending=MAX_CALLS)
        self.store = FaultySharedStore(self.memory, Random(1), self.faults)
        self.tier: SharedTier = stepped_tier(self.store, self.events, self.clock, self.lane, max_bytes=self.max_bytes)
        self.num_wakes = 0
        self.lane.run()

    def ask(self, prompt: BlockChain, match: PrefixMatch = NO_MATCH, layout: str = "attention") -> SharedAsk | None:
        return self.tier.ask(prompt, match, RULES[layout], "model", RequestId("r"), self.wake)

    def wake(self) -> None:
        self.num_wakes += 1

    def offer(self, records: Sequence[Record]) -> None:
        self.tier.queue.offer(ONE, records, RequestId("r"))

    def outcomes(self, operation: str) -> list[str]:
        events: Sequence[SharedStoreUsed] = self.events.of(SharedStoreUsed)
        return [event.outcome for event in events if event.operation == operation]

    def faults_of(self) -> list[str]:
        return [event.where for event in self.events.of(FaultObserved)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def prompt_of(records: Sequence[Record], *more: int) -> BlockChain:
    tokens = [token for record in records for token in record.key_ids]
    return BlockChain(ONE.namespace, BLOCK_TOKENS, IdRow([*tokens, *more]))


class TestAsking:
    def test_what_the_store_has_beyond_the_match(self, bench: Bench) -> None:
        blocks = chain(ONE, 4)
        bench.store.put(ONE, blocks)
        prompt = prompt_of(blocks, 1, 2, 3)
        ask = bench.ask(prompt, PrefixMatch(BLOCK_TOKENS, (), BLOCK_TOKENS, StopReason.NEVER_SEEN))
        assert ask is not None
        assert not ask.settle()
        bench.lane.run()
        assert bench.num_wakes == 1
        assert ask.settle()
        assert ask.finds.records.blocks == {block.key.hash for block in blocks[1:]}  # type: ignore[union-attr]
        assert bench.outcomes("ask") == ["found"]

    def test_a_recurrent_model_finds_the_last_snapshot_wherever_it_is(self, bench: Bench) -> None:
        blocks = chain(ONE, 80)
        early = snapshot(blocks[4], list(blocks[5].key_ids[:6]))
        bench.store.put(ONE, [*blocks, early])
        ask = bench.ask(prompt_of(blocks, 1), layout="hybrid")
        assert ask is not None
        bench.lane.run()
        assert ask.settle()
        assert ask.finds.records.snapshots == {5 * BLOCK_TOKENS + 6: early.key}

    def test_a_snapshot_of_the_whole_prompt_is_of_no_use(self, bench: Bench) -> None:
        blocks = chain(ONE, 1)
        bench.store.put(ONE, [*blocks, snapshot(blocks[0], [7])])
        ask = bench.ask(prompt_of(blocks, 7))
        assert ask is not None
        bench.lane.run()
        assert ask.settle()
        assert ask.finds.records.snapshots == {}
        assert snapshot_key(ONE.namespace, blocks[0].key.hash, [7]) not in ask.finds.hints  # type: ignore[union-attr]


class TestLateness:
    def test_an_answer_after_the_deadline_is_not_waited_for(self, bench: Bench) -> None:
        ask = bench.ask(prompt_of(chain(ONE, 2)))
        assert ask is not None
        bench.clock.advance(DEADLINE_S - 0.001)
        assert not ask.settle()
        assert bench.tier.is_awaited
        bench.clock.advance(0.001)
        assert ask.settle()
        assert ask.is_late
        assert not ask.finds.hints
        assert bench.outcomes("ask") == ["late"]
        assert bench.faults_of() == ["shared.late"]
        assert bench.ask(prompt_of(chain(ONE, 2))) is None

    def test_an_answer_that_is_there_counts_however_late_it_is_looked_at(self, bench: Bench) -> None:
        """The compute thread may have been busy for a second."""
        blocks = chain(ONE, 2)
        bench.store.put(ONE, blocks)
        ask = bench.ask(prompt_of(blocks, 1))
        assert ask is not None
        bench.lane.run()
        bench.clock.advance(1.0)
        assert ask.settle()
        assert len(ask.finds.hints) == 2
        assert not ask.is_overdue(bench.clock.now_ns(), 0)

    def test_what_has_arrived_buys_the_time_that_computing_it_would_have_taken(self, bench: Bench) -> None:
        ask = bench.ask(prompt_of(chain(ONE, 2)))
        assert ask is not None
        bench.lane.run()
        assert ask.settle()
        began_ns = bench.clock.now_ns()
        bench.tier.note_pace("model", 1000, 2_000_000_000)
        bench.tier.note_pace("model", 1000, 5_000_000_000)  # the fastest counts
        bench.tier.note_pace("model", 8, 1)  # too short to tell
        bench.clock.advance(DEADLINE_S)
        assert ask.is_overdue(began_ns, 0)
        assert not ask.is_overdue(began_ns, 100)
        bench.clock.advance(0.2)
        assert ask.is_overdue(began_ns, 100)

    def test_before_a_model_was_measured_it_counts_as_fast(self, bench: Bench) -> None:
        ask = bench.ask(prompt_of(chain(ONE, 2)))
        assert ask is not None
        bench.lane.run()
        assert ask.settle()
        began_ns = bench.clock.now_ns()
        bench.clock.advance(DEADLINE_S + 0.99)
        assert not ask.is_overdue(began_ns, ASSUMED_TOKENS_PER_S)
        bench.clock.advance(0.02)
        assert ask.is_overdue(began_ns, ASSUMED_TOKENS_PER_S)

    def test_the_deadline_is_one_for_asking_and_reading(self, bench: Bench) -> None:
        bench.faults.delays, bench.faults.slow_s = 1.0, 0.015
        ask = bench.ask(prompt_of(chain(ONE, 2)))
        assert ask is not None
        bench.lane.run()  # two calls of the store
        assert ask.settle()
        began_ns = bench.clock.now_ns()
        bench.clock.advance(0.019)
        assert not ask.is_overdue(began_ns, 0)
        bench.clock.advance(0.002)
        assert ask.is_overdue(began_ns, 0)

    def test_more_calls_than_may_wait_are_not_made(self, bench: Bench) -> None:
        asked = [bench.ask(prompt_of(chain(ONE, 1))) for _ in range(MAX_CALLS + 3)]
        assert asked.count(None) == 3


class TestBreaker:
    def test_its_states(self) -> None:
        clock, events = FakeClock(), RecordingEvents()
        access = SharedAccess(FaultySharedStore(SharedMemory(), Random(1), SharedFaults()), events, clock, DEADLINE_S)
        failure = SharedStoreError(SharedFailure.UNREACHABLE, "gone")
        assert not access.is_closed
        assert access.begins_trial()
        assert not access.begins_trial(), "one trial at a time"
        access.try_again()
        assert access.is_closed
        for _ in range(3):  # late failures of earlier calls count once
            access.failed(failure)
        pause_s = MIN_PAUSE_S
        for _ in range(8):
            clock.advance(pause_s - 0.01)
            assert not access.begins_trial()
            clock.advance(0.01)
            assert access.begins_trial()
            access.failed(failure)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
        assert access.num_outages == len(events.of(FaultObserved)) == 1
        clock.advance(pause_s)
        assert access.begins_trial()
        access.try_again()
        assert access.is_closed
        access.failed(failure)
        assert access.num_outages == len(events.of(FaultObserved)) == 2

    def test_a_failure_during_the_trial_outweighs_it(self) -> None:
        access = SharedAccess(
            FaultySharedStore(SharedMemory(), Random(1), SharedFaults()), RecordingEvents(), FakeClock(), DEADLINE_S
        )
        assert access.begins_trial()
        access.failed(SharedStoreError(SharedFailure.UNREACHABLE, "gone"))
        access.try_again()
        assert not access.is_closed

    def test_a_store_that_fails_is_not_asked_until_a_trial_beside_requests_succeeded(self, bench: Bench) -> None:
        bench.faults.is_gone = True
        ask = bench.ask(prompt_of(chain(ONE, 1)))
        assert ask is not None
        bench.lane.run()
        assert ask.settle()
        assert bench.outcomes("ask") == ["unreachable"]
        assert bench.faults_of() == ["shared.unreachable"]
        bench.faults.is_gone = False
        bench.clock.advance(MIN_PAUSE_S)
        assert bench.ask(prompt_of(chain(ONE, 1))) is None, "the trial comes first"
        bench.lane.run()
        assert bench.ask(prompt_of(chain(ONE, 1))) is not None

    def test_a_slow_trial_keeps_it_open(self, bench: Bench) -> None:
        bench.faults.is_gone = True
        bench.ask(prompt_of(chain(ONE, 1)))
        bench.lane.run()
        bench.faults.is_gone, bench.faults.delays = False, 1.0
        bench.clock.advance(MIN_PAUSE_S)
        assert not bench.tier.stats().is_available
        bench.lane.run()
        assert not bench.tier.stats().is_available

    def test_an_idle_server_notices_the_recovery_when_its_figures_are_read(self, bench: Bench) -> None:
        bench.faults.is_gone = True
        bench.ask(prompt_of(chain(ONE, 1)))
        bench.lane.run()
        bench.faults.is_gone = False
        bench.clock.advance(MIN_PAUSE_S)
        bench.tier.stats()
        bench.lane.run()
        assert bench.tier.stats().is_available
        assert bench.tier.stats().num_outages == 1

    def test_a_store_that_is_full_is_still_read(self, bench: Bench) -> None:
        bench.faults.is_full = True
        bench.offer(chain(ONE, 1))
        pump(bench.tier)
        assert bench.tier.is_available
        assert bench.faults_of() == ["shared.full"]


class TestWriting:
    def test_each_record_ends_in_one_counter(self, bench: Bench) -> None:
        blocks = chain(ONE, 4)
        bench.offer(blocks[:3])
        assert bench.tier.queue.queued_bytes == sum(block.raw_bytes for block in blocks[:3])
        pump(bench.tier)
        bench.offer(blocks)
        pump(bench.tier)
        stats = bench.tier.stats()
        assert dict(stats.written) == {"present": 3, "written": 4}
        assert (stats.queued, stats.queued_bytes) == (0, 0)

    def test_the_queue_is_bounded(self) -> None:
        (block,) = chain(ONE, 1)
        bench = Bench(max_bytes=2 * block.raw_bytes)
        for seed in range(4):
            bench.offer(chain(ONE, 1, seed=seed))
        pump(bench.tier)
        assert bench.tier.stats().written == {"queue_full": 2, "written": 2}

    def test_a_record_larger_than_the_queue_is_written_alone(self) -> None:
        bench = Bench(max_bytes=1)
        bench.offer(chain(ONE, 1))
        pump(bench.tier)
        assert bench.tier.stats().written["written"] == 1

    def test_nothing_is_kept_for_a_store_that_is_gone(self, bench: Bench) -> None:
        bench.offer(chain(ONE, 1))
        bench.faults.is_gone = True
        pump(bench.tier)
        bench.offer(chain(ONE, 2))
        assert bench.tier.stats().written == {"unreachable": 3}
        assert bench.tier.queue.queued_bytes == 0

    def test_what_waits_is_dropped_at_the_end_and_nothing_is_taken_after(self, bench: Bench) -> None:
        bench.offer(chain(ONE, 2))
        bench.tier.close(0.0)
        bench.offer(chain(ONE, 1))
        assert bench.tier.stats().written == {"shutdown": 3}


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([], []),  # a call for nothing would wait behind calls that hang
        ([1] * 9, [4, 4, 1]),
        ([1, BYTES_PER_CALL, 1, 3 * BYTES_PER_CALL], [1, 1, 1, 1]),
        ([1, BYTES_PER_CALL - 1, 1], [2, 1]),
    ],
)
def test_a_call_reads_few_records_and_bytes(sizes: list[int], parts: list[int]) -> None:
    (record,) = chain(namespace_of("one"), 1)
    hints = [SharedHint(record.key, size_bytes, b"") for size_bytes in sizes]
    calls = list(calls_of(hints))
    assert [len(hints[part]) for part in calls] == parts
    assert [hint for part in calls for hint in hints[part]] == hints
