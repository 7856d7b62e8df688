"""The write-behind queue: bounded, in order, and honest about what it did not write."""

from collections.abc import Iterator, Sequence
from threading import Condition, Event

import pytest

from adapters.fake.environment import FakeClock
from adapters.memory.block_store import MemoryBlockStore
from application.events import RecordsDropped, RecordsPersisted, StoreFault
from application.ports.block_store import PreparedPut, PutOutcome
from application.services.prefix.write_behind import WriteBehind
from domain.ids import RequestId
from domain.prefix.record import NamespaceInfo, Record
from tests.support.patience import PATIENCE_S
from tests.support.stores.faulty_stores import GatedStore
from tests.support.stores.store_records import chain, held, keys_of, namespace_of, snapshot
from tests.support.telemetry.recording import RecordingEvents

INFO = namespace_of("one")
WAIT_S = PATIENCE_S


@pytest.fixture
def gated() -> Iterator[GatedStore]:
    store = GatedStore()
    yield store
    store.open()


def balance(writer: WriteBehind) -> None:
    counts = writer.counts()
    late = sum(number for reason, number in counts.dropped.items() if reason != "queue_full")
    assert counts.enqueued == counts.persisted + counts.queued + late


def test_what_is_offered_is_stored_in_order_and_reported() -> None:
    store, events = MemoryBlockStore(), RecordingEvents()
    writer = WriteBehind(store, events, FakeClock(), max_bytes=1 << 20)
    blocks = chain(INFO, 6)
    assert all(writer.offer(INFO, [record]) for record in blocks)
    assert writer.flush(WAIT_S)
    assert held(store, keys_of(blocks)) == [True] * 6
    counts = writer.close(WAIT_S)
    assert (counts.enqueued, counts.persisted, counts.queued, counts.queued_bytes) == (6, 6, 0, 0)
    assert counts.dropped == {}
    assert sum(event.num_records for event in events.of(RecordsPersisted)) == 6
    assert store.usage().namespaces[0].info == INFO


def test_a_full_queue_drops_the_rest_of_a_chain_and_nothing_else(gated: GatedStore) -> None:
    events = RecordingEvents()
    blocks, other = chain(INFO, 6), chain(namespace_of("two"), 1, size_bytes=64)
    size_bytes = sum(payload.size_bytes for payload in blocks[0].groups.values())
    writer = WriteBehind(gated, events, FakeClock(), max_bytes=3 * size_bytes + 500)
    assert writer.offer(INFO, blocks[:1])
    assert gated.entered.wait(WAIT_S)
    assert [writer.offer(INFO, [record]) for record in blocks[1:4]] == [True, True, False]
    tail = snapshot(blocks[3], [1], size_bytes=8)
    assert not writer.offer(INFO, [tail])
    assert writer.offer(namespace_of("two"), other)
    assert writer.counts().queued_bytes <= 3 * size_bytes + 500
    gated.gate.set()
    assert writer.flush(WAIT_S)
    # There is room now, and still no hole is made.
    assert [writer.offer(INFO, [record]) for record in blocks[4:]] == [False, False]
    assert [writer.offer(INFO, [record]) for record in blocks[3:]] == [True, True, True]
    counts = writer.close(WAIT_S)
    assert counts.dropped == {"queue_full": 4}
    assert counts.persisted == counts.enqueued == 7
    assert gated.check_integrity().problems == ()
    assert sum(event.num_records for event in events.of(RecordsDropped)) == 4
    balance(writer)


def test_waiting_offers_are_written_together(gated: GatedStore) -> None:
    writer = WriteBehind(gated, RecordingEvents(), FakeClock(), max_bytes=1 << 20)
    blocks = chain(INFO, 9)
    assert writer.offer(INFO, blocks[:1])
    assert gated.entered.wait(WAIT_S)
    assert all(writer.offer(INFO, [record]) for record in blocks[1:])
    gated.gate.set()
    assert writer.flush(WAIT_S)
    assert gated.batches == [1, 8]
    writer.close(WAIT_S)


def test_one_bad_offer_does_not_take_the_others_with_it(gated: GatedStore) -> None:
    events = RecordingEvents()
    writer = WriteBehind(gated, events, FakeClock(), max_bytes=1 << 20)
    good, orphans = chain(INFO, 3), chain(INFO, 3, seed=9)[1:]
    assert writer.offer(INFO, good[:1])
    assert gated.entered.wait(WAIT_S)
    assert writer.offer(INFO, orphans)
    assert writer.offer(INFO, good[1:])
    gated.gate.set()
    assert writer.flush(WAIT_S)
    assert held(gated, keys_of(good)) == [True] * 3
    assert writer.counts().dropped == {"orphan": 2}
    assert [event.reason for event in events.of(RecordsDropped)] == ["orphan"]
    writer.close(WAIT_S)
    balance(writer)


def test_a_store_that_raises_is_reported_and_does_not_end_the_thread() -> None:
    class RaisingStore(MemoryBlockStore):
        flushed = Event()

        def open_namespace(self, info: NamespaceInfo) -> None:
            raise ValueError("no name")

        def put(self, records: Sequence[Record]) -> PutOutcome:
            raise RuntimeError("a defect")

        def flush(self) -> None:
            self.flushed.set()
            raise OSError(5, "a bad disk")

    store, events = RaisingStore(), RecordingEvents()
    writer = WriteBehind(store, events, FakeClock(), max_bytes=1 << 20, idle_s=0.01)
    assert store.flushed.wait(WAIT_S)
    assert writer.offer(INFO, chain(INFO, 1))
    assert writer.offer(INFO, chain(INFO, 1, seed=2))
    assert writer.close(WAIT_S).dropped == {"failed": 2}
    told = {(event.kind, event.message) for event in events.of(StoreFault)}
    expected = {"ValueError: no name", "RuntimeError: a defect", "OSError: [Errno 5] a bad disk"}
    assert told == {("contract", message) for message in expected}


def test_more_than_the_whole_queue_is_taken_when_it_is_empty() -> None:
    writer = WriteBehind(MemoryBlockStore(), RecordingEvents(), FakeClock(), max_bytes=10)
    assert writer.offer(INFO, chain(INFO, 3))
    assert writer.close(WAIT_S).persisted == 3


def test_what_is_offered_is_reported_with_its_request_until_it_is_settled(gated: GatedStore) -> None:
    events, clock, asked = RecordingEvents(), FakeClock(), RequestId("r")
    blocks = chain(INFO, 3)
    size_bytes = sum(payload.size_bytes for payload in blocks[0].groups.values())
    writer = WriteBehind(gated, events, clock, max_bytes=2 * size_bytes)
    assert writer.offer(INFO, blocks[:1], asked)
    assert gated.entered.wait(WAIT_S)
    assert writer.offer(INFO, blocks[1:2], asked)
    assert not writer.offer(INFO, blocks[2:], asked)
    offered_ns = clock.now_ns()
    clock.advance(1.5)
    gated.open()
    writer.close(WAIT_S)
    assert events.of(RecordsDropped) == [RecordsDropped(1, "queue_full", offered_ns, asked)]
    persisted = events.of(RecordsPersisted)
    assert [(one.id, one.offered_ns, one.at_ns) for one in persisted] == [(asked, offered_ns, clock.now_ns())] * 2


class PreparingStore(MemoryBlockStore):
    """Tells what was prepared, how, and when it was put. A put waits for `gate`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Event()
        self._changed = Condition()
        self.log: list[str] = []

    def prepare(self, records: Sequence[Record]) -> PreparedPut:
        self._tell("prepare")
        return super().prepare(records)

    def put(self, records: Sequence[Record]) -> PutOutcome:
        self._tell("put")
        assert self.gate.wait(WAIT_S)
        return super().put(records)

    def await_put(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: "put" in self.log, WAIT_S)

    def _tell(self, what: str) -> None:
        with self._changed:
            self.log.append(what)
            self._changed.notify_all()


class AheadStore(PreparingStore):
    """Offers come while the first is being prepared: none is put before `offered`."""

    def __init__(self) -> None:
        super().__init__()
        self.offered = Event()

    def open_namespace(self, info: NamespaceInfo) -> None:
        assert self.offered.wait(WAIT_S)


def test_batches_are_prepared_while_another_waits_to_be_written_as_far_as_there_is_room() -> None:
    store = PreparingStore()
    blocks = chain(INFO, 8)
    size_bytes = blocks[0].raw_bytes
    writer = WriteBehind(
        store,
        RecordingEvents(),
        FakeClock(),
        max_bytes=40 * size_bytes,
        batch_bytes=size_bytes,
        ahead_bytes=3 * size_bytes,
    )
    assert writer.offer(INFO, blocks[:1])
    store.await_put()
    assert all(writer.offer(INFO, [record]) for record in blocks[1:])
    store.gate.set()
    assert writer.flush(WAIT_S)
    assert store.log == [
        *("prepare", "put"),
        *("prepare", "prepare", "prepare", "put"),
        *("prepare", "put", "prepare", "put", "prepare", "put", "prepare", "put"),
        *("put", "put"),
    ]
    assert held(store, keys_of(blocks)) == [True] * 8
    assert store.check_integrity().problems == ()
    assert writer.close(WAIT_S).dropped == {}
    assert writer.held_bytes == 0


def test_one_batch_is_prepared_while_another_is_written_however_large_they_are() -> None:
    """A chunk's blocks come together, and may be more than what is to be prepared ahead."""
    store = AheadStore()
    blocks = chain(INFO, 4)
    writer = WriteBehind(store, RecordingEvents(), FakeClock(), max_bytes=1 << 20, batch_bytes=1, ahead_bytes=1)
    assert all(writer.offer(INFO, [record]) for record in blocks)
    store.offered.set()
    store.gate.set()
    assert writer.close(WAIT_S).persisted == 4
    assert store.log == [*("prepare", "prepare"), *("put", "prepare") * 2, *("put", "put")]


def test_what_was_prepared_is_dropped_at_shutdown_when_there_is_no_time() -> None:
    store, events = AheadStore(), RecordingEvents()
    blocks = chain(INFO, 5)
    writer = WriteBehind(store, events, FakeClock(), max_bytes=1 << 20, batch_bytes=1)
    assert all(writer.offer(INFO, [record]) for record in blocks)
    store.offered.set()
    store.await_put()
    assert store.log == ["prepare"] * 5 + ["put"]
    counts = writer.close(0.05)
    assert counts.dropped == {"shutdown": 4}
    assert counts.queued == 1
    assert sum(event.num_records for event in events.of(RecordsDropped)) == 4
    assert not writer.offer(INFO, chain(INFO, 1, seed=4))
    store.gate.set()
    assert writer.flush(WAIT_S)
    assert writer.counts().persisted == 1
    assert writer.held_bytes == 0
