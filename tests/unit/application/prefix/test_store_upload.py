"""What is read from the store is uploaded, whole or not at all, and never lost by it."""

from collections.abc import Sequence
from dataclasses import replace

from adapters.fake.environment import FakeClock
from adapters.memory.block_store import MemoryBlockStore
from application.events import FaultObserved, RecordsRead
from application.services.prefix.store_tier import StoreTier
from domain.ids import GroupIndex
from domain.prefix.record import HostPayload, Record, RecordKey, StatePayload
from tests.support.processes.lanes import InlineLane
from tests.support.stores.stepped_writer import SteppedWriter
from tests.support.stores.store_records import EventList, chain, keys_of, namespace_of

INFO = namespace_of("one")
BLOCKS = chain(INFO, 3)
FIRST, SECOND = GroupIndex(0), GroupIndex(1)
BOTH = frozenset({FIRST, SECOND})


class Uploaded(HostPayload):
    """State that a backend holds."""


class Backend:
    """Lands what it is given, until it has no memory left."""

    def __init__(self, room: int = 100) -> None:
        self.room = room

    def upload(self, payloads: Sequence[StatePayload]) -> Sequence[StatePayload]:
        self.room -= len(payloads)
        if self.room < 0:
            raise MemoryError("no room on the device")
        return [Uploaded(payload.specs, payload.buffers()) for payload in payloads]


def fetched(
    backend: Backend, events: EventList, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex]] = ()
) -> Sequence[Record | None]:
    store = MemoryBlockStore(1 << 30)
    store.open_namespace(INFO)
    store.put(BLOCKS)
    tier = StoreTier(FakeClock(), events, SteppedWriter(store), upload=backend.upload, readers=InlineLane())
    read = tier.fetch(keys, groups or [BOTH] * len(keys), lambda: None)
    assert read is not None
    return read.answer or ()


def test_every_payload_is_landed_and_nothing_else_changes() -> None:
    events = EventList()
    found = fetched(Backend(), events, [*keys_of(BLOCKS[:2]), keys_of(chain(INFO, 4))[3]])
    assert found[2] is None
    for record, block in zip(found[:2], BLOCKS, strict=False):
        assert record is not None
        assert all(isinstance(payload, Uploaded) for payload in record.groups.values())
        assert {index: bytes(one.buffers()[0]) for index, one in record.groups.items()} == {
            index: bytes(one.buffers()[0]) for index, one in block.groups.items()
        }
        assert replace(record, groups={}) == replace(block, groups={})
    assert [type(event) for event in events.events] == [RecordsRead]


def test_only_the_groups_asked_for_are_landed() -> None:
    backend = Backend()
    (found,) = fetched(backend, EventList(), keys_of(BLOCKS[:1]), [frozenset({SECOND})])
    assert found is not None
    assert set(found.groups) == {SECOND}
    assert backend.room == 99


def test_a_read_that_cannot_be_landed_is_given_as_it_is_and_that_is_counted() -> None:
    events = EventList()
    found = fetched(Backend(room=3), events, keys_of(BLOCKS))
    uploaded = [
        [isinstance(one.groups[index], Uploaded) for index in (FIRST, SECOND)] for one in found if one is not None
    ]
    assert uploaded == [[False, False]] * 3
    faults = [event for event in events.of(FaultObserved) if isinstance(event, FaultObserved)]
    assert [(fault.where, fault.message) for fault in faults] == [("prefix.land", "MemoryError: no room on the device")]
