"""From the moment a record is accepted for storing until it is stored it can be read, and the index has it; if it is
dropped it is gone.

Reading is tried while the record waits, while it is being written (before and after the store has it) and when it was
written, and with the write passing in the middle of the read.
"""

from collections.abc import Iterator, Sequence
from threading import Thread

import pytest

from adapters.fake.environment import FakeClock
from adapters.memory.block_store import MemoryBlockStore
from application.ports.block_store import PutOutcome
from application.services.prefix.indexes import Indexes
from application.services.prefix.write_behind import WriteBehind
from domain.ids import GroupIndex
from domain.prefix.index import PERSISTED, QUEUED, STORED
from domain.prefix.record import Record, RecordKey
from tests.support.stores.faulty_stores import PATIENCE_S, GatedStore
from tests.support.stores.forwarding_store import ForwardingStore
from tests.support.stores.stepped_writer import SteppedWriter
from tests.support.stores.store_records import chain, keys_of, namespace_of, same, snapshot
from tests.support.telemetry.recording import RecordingEvents

ONE, TWO = namespace_of("one"), namespace_of("two")


class View:
    """What may be read through a writer, and what the indexes know of it."""

    def __init__(self, writer: WriteBehind) -> None:
        self.writer = writer
        self.indexes = Indexes(writer.store.keys)
        self._epochs = [self.indexes.epoch(info) for info in (ONE, TWO)]
        for epoch in self._epochs:
            self.indexes.load(epoch)
        writer.report_to(self.indexes)

    def get(self, keys: Sequence[RecordKey]) -> Sequence[Record | None]:
        found = self.writer.get(keys)
        assert [record is not None for record in found] == [bool(at & PERSISTED) for at in self.indexes.places(keys)]
        return found


class Setup:
    """A gated store, its writer, and both as one store."""

    def __init__(self, *, max_bytes: int = 1 << 20) -> None:
        self.store = GatedStore()
        self.events = RecordingEvents()
        self.writer = WriteBehind(self.store, self.events, FakeClock(), max_bytes=max_bytes)
        self.view = View(self.writer)

    def offer_behind_a_write(self, records: Sequence[Record]) -> None:
        """The records wait, because something else is being written."""
        self.store.entered.clear()  # an earlier write set it too
        assert self.writer.offer(TWO, chain(TWO, 1))
        assert self.store.entered.wait(PATIENCE_S)
        assert self.writer.offer(ONE, records)

    def finish(self) -> None:
        self.store.open()
        assert self.writer.flush(PATIENCE_S)


@pytest.fixture
def setup() -> Iterator[Setup]:
    made = Setup()
    yield made
    made.store.open()
    made.writer.close(PATIENCE_S)


def is_there(view: View | GatedStore, records: Sequence[Record]) -> list[bool]:
    """Of each record: whether it is found as it was put."""
    found = view.get(keys_of(records))
    assert all(read is None or same(read, record) for record, read in zip(records, found, strict=True))
    return [read is not None for read in found]


def tree() -> list[Record]:
    """Three blocks in a row, a branch, and snapshots on the root, on a block and on the branch."""
    trunk = chain(ONE, 3)
    branch = chain(ONE, 1, seed=1, after=trunk[0])
    return [*trunk, *branch, snapshot(ONE, [1]), snapshot(trunk[2], [2, 3]), snapshot(branch[0], [])]


def test_what_is_stored_and_not_yet_settled_is_there_once(setup: Setup) -> None:
    setup.store.exit.clear()
    records = tree()
    assert setup.writer.offer(ONE, records)
    setup.store.gate.set()
    assert setup.store.stored.wait(PATIENCE_S)
    assert setup.writer.counts().queued == len(records)
    assert is_there(setup.store, records) == is_there(setup.view, records) == [True] * len(records)


def test_what_was_written_is_the_stores(setup: Setup) -> None:
    records = tree()
    setup.offer_behind_a_write(records)
    setup.finish()
    assert is_there(setup.view, records) == [True] * len(records)
    setup.store.delete(keys_of(records[:1]))
    assert is_there(setup.view, records) == [False] * 4 + [True] + [False] * 2


class PassingStore(ForwardingStore):
    """Everything that waits is written and settled after the store has answered, and before the answer is returned."""

    def __init__(self) -> None:
        super().__init__(MemoryBlockStore())
        self.writer = SteppedWriter(MemoryBlockStore())

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        found = super().get(keys, groups)
        self.writer.pump()
        return found


def test_a_record_written_in_the_middle_of_a_read_is_seen() -> None:
    store = PassingStore()
    store.writer = SteppedWriter(store)
    block, hanging, stranger = chain(ONE, 1)[0], snapshot(ONE, [1]), chain(ONE, 1, seed=5)[0]
    assert store.writer.offer(ONE, [block, hanging])
    found = store.writer.get(keys_of([block, stranger, hanging]))
    assert same(found[0], block)
    assert found[1] is None
    assert same(found[2], hanging)
    assert store.writer.counts().queued == 0


def test_queued_and_stored_are_read_together(setup: Setup) -> None:
    """In the order asked, each limited to the groups asked for."""
    stored = [*chain(ONE, 2), snapshot(ONE, [1, 2])]
    assert setup.writer.offer(ONE, stored)
    setup.finish()
    setup.store.gate.clear()
    waiting = [*chain(ONE, 1, seed=3), snapshot(ONE, [9]), snapshot(ONE, [7, 8, 9])]
    setup.offer_behind_a_write(waiting)
    keys = keys_of([waiting[0], stored[0], chain(ONE, 1, seed=4)[0], stored[1]])
    assert setup.view.indexes.places(keys) == [QUEUED, STORED, 0, STORED]
    some = frozenset({GroupIndex(1)})
    first, second, third, fourth = setup.writer.get(keys, [some, some, None, frozenset()])
    assert first is not None
    assert second is not None
    assert fourth is not None
    assert (first.groups.keys(), second.groups.keys(), third, fourth.groups.keys()) == (some, some, None, frozenset())
    assert (first.key_ids, second.key_ids) == (waiting[0].key_ids, stored[0].key_ids)


@pytest.mark.parametrize("is_stored", [False, True])
def test_deleting_waits_for_what_is_being_written(setup: Setup, is_stored: bool) -> None:
    setup.store.exit.clear()
    records = tree()
    assert setup.writer.offer(ONE, records)
    assert setup.store.entered.wait(PATIENCE_S)
    assert setup.writer.offer(ONE, [record for record in records if record.position > 16])
    if is_stored:
        setup.store.gate.set()
        assert setup.store.stored.wait(PATIENCE_S)
    deleting = Thread(target=lambda: setup.writer.delete([records[0].key]))
    deleting.start()
    # Something else is deleted meanwhile: only what is being written is waited for.
    setup.writer.delete([chain(TWO, 1)[0].key])
    assert deleting.is_alive()
    setup.store.open()
    deleting.join(PATIENCE_S)
    assert not deleting.is_alive()
    left = [record.position < 16 for record in records]
    assert is_there(setup.view, records) == left
    setup.finish()
    assert is_there(setup.view, records) == is_there(setup.store, records) == left


def test_deleting_waits_for_what_hung_on_what_it_took_out_of_the_queue() -> None:
    """A child that was offered before its parent, and is taken before the parent is."""
    store = MemoryBlockStore()
    writer = SteppedWriter(store)
    view = View(writer)
    blocks = chain(ONE, 3)
    assert writer.offer(ONE, blocks[2:])
    assert writer.step()
    assert writer.offer(ONE, blocks[:2])
    assert is_there(view, blocks) == [True] * 3
    writer.delete([blocks[0].key])
    assert is_there(view, blocks) == [False] * 3
    assert writer.counts().dropped == {"deleted": 2, "orphan": 1}


def test_after_close_nothing_is_read(setup: Setup) -> None:
    records = tree()
    setup.offer_behind_a_write(records)
    setup.writer.close(0)
    setup.store.close()
    assert is_there(setup.view, records) == [False] * len(records)
    setup.store.open()
    assert setup.store.put(records) is PutOutcome.UNAVAILABLE


def test_readers_never_miss_what_was_accepted() -> None:
    """Readers run while the writer does; whatever was accepted before a read began is found by it."""
    store = MemoryBlockStore()
    writer = WriteBehind(store, RecordingEvents(), FakeClock(), max_bytes=1 << 30, batch_bytes=1)
    indexes = View(writer).indexes
    blocks = chain(ONE, 150, size_bytes=64)
    accepted = 0
    missed: list[int] = []

    def read() -> None:
        done = False
        while not done:
            done = accepted == len(blocks) and writer.counts().queued == 0
            known = blocks[:accepted]
            seen = indexes.places(keys_of(known))
            if not all(seen) or None in writer.get(keys_of(known)):
                missed.append(len(known))

    readers = [Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for record in blocks:
        assert writer.offer(ONE, [record])
        accepted += 1
    for reader in readers:
        reader.join(PATIENCE_S)
    assert not any(reader.is_alive() for reader in readers)
    assert missed == []
    assert writer.close(PATIENCE_S).persisted == len(blocks)
