"""What waits for a verified read: nothing of it is written, and it is dropped where the device fails before."""

from adapters.fake.environment import FakeClock
from adapters.memory.block_store import MemoryBlockStore
from application.events import RecordsDropped
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.store_tier import StoreTier
from application.services.prefix.tiers import PrefixTiers
from application.services.prefix.write_behind import WriteBehind
from domain.ids import NO_REQUEST
from tests.support.patience import PATIENCE_S
from tests.support.processes.lanes import HeldLane
from tests.support.stores.shared_stores import MemorySharedStore, SharedMemory, pump, stepped_tier
from tests.support.stores.store_records import chain, held, keys_of, namespace_of
from tests.support.telemetry.recording import RecordingEvents

INFO = namespace_of("one")


class Bench:
    """`num_waits`: the number of waits for the device."""

    def __init__(self) -> None:
        self.store, self.memory, self.events, self.num_waits = MemoryBlockStore(), SharedMemory(), RecordingEvents(), 0
        clock, lane = FakeClock(), HeldLane()
        self.writer = WriteBehind(self.store, self.events, clock, max_bytes=1 << 30)
        stored = StoreTier(clock, self.events, self.writer, readers=lane, upkeep=lane)
        self.shared = stepped_tier(MemorySharedStore(self.memory), self.events, clock, lane)
        lane.run()
        self.tiers = PrefixTiers(HotTier(1 << 30), stored, hashing=lane, shared=self.shared)
        self.tiers.confirm()
        self.blocks = chain(INFO, 4)

    def offer(self, index: int) -> None:
        assert self.tiers.offer(INFO, [self.blocks[index]], NO_REQUEST, {})

    def finish(self) -> None:
        self.num_waits += 1

    def close(self) -> tuple[list[bool], list[bool]]:
        """Which blocks are in the store and in the shared one, when both were closed in order."""
        self.writer.close(PATIENCE_S)
        pump(self.shared)
        return held(self.store, keys_of(self.blocks)), [
            ("", key) in self.memory.records for key in keys_of(self.blocks)
        ]


def test_records_are_written_after_two_more_steps() -> None:
    bench = Bench()
    for index in range(4):
        bench.offer(index)
        bench.tiers.confirm()
    assert bench.close() == ([True, True, False, False],) * 2
    assert bench.num_waits == 0
    assert bench.writer.counts().dropped == {"unconfirmed": 2}
    assert sum(event.num_records for event in bench.events.of(RecordsDropped)) == 2


def test_records_are_written_once_somebody_waited_for_the_device() -> None:
    bench = Bench()
    for index in range(4):
        bench.offer(index)
    for _ in range(3):
        bench.tiers.confirm(bench.finish)
    assert bench.close() == ([True] * 4,) * 2
    assert bench.num_waits == 1, "it waits only for what is not confirmed"


def test_what_was_cleared_meanwhile_reaches_no_other_server() -> None:
    bench = Bench()
    bench.offer(0)
    bench.shared.queue.erase(None)
    bench.offer(1)
    bench.tiers.confirm(bench.finish)
    assert bench.close()[1] == [False, True, False, False]
