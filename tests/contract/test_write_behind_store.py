"""From the moment a record is accepted for storing until it is stored it can be read; if it is dropped it is gone.

Every read is tried while the record waits, while it is being written (before and after the store has it) and when it
was written, and with the write passing in the middle of the read.
"""

from collections.abc import Iterator, Sequence
from threading import Thread

import pytest

from adapters.decorators.fault_injection import FaultInjectingBlockStore, FaultPlan
from adapters.decorators.forwarding_store import ForwardingStore
from adapters.fake.clock import FakeClock
from adapters.memory.block_store import MemoryBlockStore
from application.ports.record_reader import Presence, RecordReader
from application.ports.record_writer import PutOutcome
from application.services.prefix.write_behind import WriteBehind
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.record import BlockKey, Namespace, Record, RecordKey, SnapshotKey
from domain.snapshot_place import SnapshotPlace
from tests.support.gated_store import PATIENCE_S, GatedStore
from tests.support.stepped_writer import SteppedWriter
from tests.support.store_records import EventList, chain, keys_of, namespace_of, same, snapshot

ONE, TWO = namespace_of("one"), namespace_of("two")
ROOT = BlockHash(ONE.namespace)


class Setup:
    """A gated store, its writer, and both as one store."""

    def __init__(self, *, max_bytes: int = 1 << 20) -> None:
        self.store = GatedStore()
        self.events = EventList()
        self.writer = WriteBehind(self.store, self.events, FakeClock(), max_bytes=max_bytes)
        self.view = self.writer

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


def block_hash(record: Record) -> BlockHash:
    assert isinstance(record.key, BlockKey)
    return record.key.hash


def is_there(view: RecordReader, records: Sequence[Record]) -> list[bool]:
    """Of each record: whether every way of reading finds it. Fails when they disagree."""
    found = []
    for record, read in zip(records, view.get(keys_of(records)), strict=True):
        if isinstance(record.key, SnapshotKey):
            listed = bool(
                view.find_snapshots(
                    record.key.namespace, [SnapshotPlace(record.parent, record.key_ids.followed_by([0]))]
                )[0]
            )
        else:
            listed = view.lookup([record.key])[0].is_readable
        assert listed == same(read, record)
        assert listed == (record.key_ids in view.followers(record.key.namespace, record.parent, 100))
        found.append(listed)
    return found


def tree() -> list[Record]:
    """Three blocks in a row, a branch, and snapshots on the root, on a block and on the branch."""
    trunk = chain(ONE, 3)
    branch = chain(ONE, 1, seed=1, after=trunk[0])
    return [*trunk, *branch, snapshot(ONE, [1]), snapshot(trunk[2], [2, 3]), snapshot(branch[0], [])]


def test_what_waits_can_be_read(setup: Setup) -> None:
    records = tree()
    assert is_there(setup.view, records) == [False] * len(records)
    setup.offer_behind_a_write(records)
    assert is_there(setup.store, records) == [False] * len(records)
    assert is_there(setup.view, records) == [True] * len(records)


def test_what_is_being_written_can_be_read(setup: Setup) -> None:
    records = tree()
    assert setup.writer.offer(ONE, records)
    assert setup.store.entered.wait(PATIENCE_S)
    assert is_there(setup.store, records) == [False] * len(records)
    assert is_there(setup.view, records) == [True] * len(records)


def test_what_is_stored_and_not_yet_settled_is_there_once(setup: Setup) -> None:
    setup.store.exit.clear()
    records = tree()
    assert setup.writer.offer(ONE, records)
    setup.store.gate.set()
    assert setup.store.stored.wait(PATIENCE_S)
    assert setup.writer.counts().queued == len(records)
    assert is_there(setup.store, records) == is_there(setup.view, records) == [True] * len(records)
    assert len(setup.view.followers(ONE.namespace, block_hash(records[0]), 100)) == 2
    place = SnapshotPlace(records[2].key.hash, IdRow((2, 3, 4)))  # type: ignore[union-attr]
    assert len(setup.view.find_snapshots(ONE.namespace, [place])[0]) == 1


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

    def lookup(self, keys: Sequence[BlockKey]) -> Sequence[Presence]:
        found = super().lookup(keys)
        self.writer.pump()
        return found

    def find_snapshots(self, namespace: Namespace, places: Sequence[SnapshotPlace]) -> Sequence[Sequence[SnapshotKey]]:
        found = super().find_snapshots(namespace, places)
        self.writer.pump()
        return found

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> Sequence[tuple[int, ...]]:
        found = super().followers(namespace, parent, limit)
        self.writer.pump()
        return found

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        found = super().get(keys, groups)
        self.writer.pump()
        return found


@pytest.mark.parametrize("read", ["lookup", "find_snapshots", "followers", "get"])
def test_a_record_written_in_the_middle_of_a_read_is_seen(read: str) -> None:
    store = PassingStore()
    store.writer = view = SteppedWriter(store)
    block, hanging = chain(ONE, 1)[0], snapshot(ONE, [1])
    stranger = chain(ONE, 1, seed=5)[0]
    assert isinstance(block.key, BlockKey)
    assert isinstance(stranger.key, BlockKey)
    assert store.writer.offer(ONE, [block, hanging])
    if read == "lookup":
        assert list(view.lookup([block.key, stranger.key])) == [Presence.PENDING, Presence.MISS]
    elif read == "find_snapshots":
        place = SnapshotPlace(ROOT, hanging.key_ids.followed_by([5]))
        assert [list(keys) for keys in view.find_snapshots(ONE.namespace, [place])] == [[hanging.key]]
    elif read == "followers":
        assert set(view.followers(ONE.namespace, ROOT, 5)) == {block.key_ids, hanging.key_ids}
    else:
        found = view.get([block.key, stranger.key, hanging.key])
        assert same(found[0], block)
        assert found[1] is None
        assert same(found[2], hanging)
    assert store.writer.queue.counts().queued == 0


def test_queued_and_stored_are_read_together(setup: Setup) -> None:
    """In the order asked, each limited to the groups asked for; lists are merged."""
    stored = [*chain(ONE, 2), snapshot(ONE, [1, 2])]
    assert setup.writer.offer(ONE, stored)
    setup.finish()
    setup.store.gate.clear()
    waiting = [*chain(ONE, 1, seed=3), snapshot(ONE, [9]), snapshot(ONE, [7, 8, 9])]
    setup.offer_behind_a_write(waiting)
    keys = keys_of([waiting[0], stored[0], chain(ONE, 1, seed=4)[0], stored[1]])
    presences = (Presence.PENDING, Presence.HIT, Presence.MISS, Presence.HIT)
    assert tuple(setup.view.lookup(keys)) == presences  # type: ignore[arg-type]
    some = frozenset({GroupIndex(1)})
    first, second, third, fourth = setup.view.get(keys, [some, some, None, frozenset()])
    assert first is not None
    assert second is not None
    assert fourth is not None
    assert (first.groups.keys(), second.groups.keys(), third, fourth.groups.keys()) == (some, some, None, frozenset())
    assert (first.key_ids, second.key_ids) == (waiting[0].key_ids, stored[0].key_ids)
    places = [SnapshotPlace(ROOT, IdRow(tokens)) for tokens in ((1, 2, 3), (9, 1), (7, 8), (7, 8, 9, 1))]
    found = setup.view.find_snapshots(ONE.namespace, places)
    assert [[key.num_partial for key in keys] for keys in found] == [[2], [1], [], [3]]
    found = setup.view.followers(ONE.namespace, ROOT, 5)
    assert sorted(map(tuple, found)) == sorted(tuple(record.key_ids) for record in (stored[0], stored[2], *waiting))


def test_what_the_full_queue_refused_is_not_there() -> None:
    setup = Setup(max_bytes=10_000)
    blocks = chain(ONE, 4)
    try:
        setup.offer_behind_a_write(blocks[:1])
        assert not setup.writer.offer(ONE, blocks[1:])
        assert is_there(setup.view, blocks) == [True, False, False, False]
    finally:
        setup.finish()
    assert is_there(setup.view, blocks) == [True, False, False, False]
    setup.writer.close(PATIENCE_S)


@pytest.mark.parametrize("trouble", ["down", "orphan", "raises", "shutdown"])
def test_what_is_dropped_is_gone(trouble: str) -> None:
    gated = GatedStore()
    store = FaultInjectingBlockStore(gated, FaultPlan())
    store.is_down = trouble == "down"
    writer = view = WriteBehind(store, EventList(), FakeClock(), max_bytes=1 << 20)
    blocks = chain(ONE, 3)
    if trouble == "raises":
        gated.defect = RuntimeError("a defect")
    records = blocks[1:] if trouble == "orphan" else blocks
    if trouble == "shutdown":
        assert writer.offer(TWO, chain(TWO, 1))
        assert gated.entered.wait(PATIENCE_S)
    assert writer.offer(ONE, records)
    if trouble == "shutdown":
        assert is_there(view, records) == [True] * 3
        assert writer.close(0).dropped == {"shutdown": 3}
        gated.open()
    else:
        gated.open()
        assert writer.flush(PATIENCE_S)
    store.is_down = False
    assert is_there(view, records) == [False] * len(records)
    writer.close(PATIENCE_S)


def test_a_record_that_waits_twice_is_there_until_the_last_copy_is_settled() -> None:
    store = MemoryBlockStore()
    writer = view = SteppedWriter(store)
    blocks = chain(ONE, 2)
    for _ in range(2):
        assert writer.offer(ONE, blocks[1:])  # an orphan, so that no copy of it is ever stored
    writer.pump(3)
    assert is_there(view, blocks) == [False, True]
    writer.pump()
    assert is_there(view, blocks) == [False, False]


def test_deleting_takes_what_waits_and_what_hangs_on_it(setup: Setup) -> None:
    records = tree()
    setup.offer_behind_a_write(records)
    assert setup.view.delete([records[1].key]) == 3
    left = [True, False, False, True, True, False, True]
    assert is_there(setup.view, records) == left
    assert setup.view.delete([records[1].key]) == 0
    setup.finish()
    assert is_there(setup.view, records) == is_there(setup.store, records) == left
    counts = setup.writer.counts()
    assert (counts.enqueued, counts.persisted, counts.dropped) == (8, 5, {"deleted": 3})
    # What hangs on what was deleted is not taken before that is back.
    assert not setup.writer.offer(ONE, records[2:3])
    assert setup.writer.offer(ONE, records[1:3])
    setup.finish()
    assert is_there(setup.view, records[:3]) == [True] * 3


@pytest.mark.parametrize("is_offered_again", [False, True])
def test_deleting_takes_both_what_waits_and_what_is_stored(setup: Setup, is_offered_again: bool) -> None:
    """Also what waits on something stored that goes because it hangs on what is deleted."""
    stored = chain(ONE, 2)
    assert setup.writer.offer(ONE, stored)
    setup.finish()
    setup.store.gate.clear()
    waiting = [*chain(ONE, 2, seed=2, after=stored[1]), snapshot(stored[1], [1])]
    other = chain(ONE, 1, seed=3)
    setup.offer_behind_a_write([*waiting, *other, *(stored[1:] if is_offered_again else ())])
    assert is_there(setup.view, waiting) == [True] * 3
    assert setup.view.delete([stored[0].key]) == 5
    assert is_there(setup.view, [*stored, *waiting, *other]) == [False] * 5 + [True]
    setup.finish()
    assert is_there(setup.view, [*stored, *waiting, *other]) == [False] * 5 + [True]
    assert setup.writer.counts().queued == 0


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
    deleted: list[int] = []
    deleting = Thread(target=lambda: deleted.append(setup.view.delete([records[0].key])))
    deleting.start()
    # Something else is deleted meanwhile: only what is being written is waited for.
    assert setup.view.delete([chain(TWO, 1)[0].key]) == 0
    assert deleted == []
    setup.store.open()
    deleting.join(PATIENCE_S)
    assert deleted == [6]
    left = [record.position < 16 for record in records]
    assert is_there(setup.view, records) == left
    setup.finish()
    assert is_there(setup.view, records) == is_there(setup.store, records) == left


def test_deleting_waits_for_what_hung_on_what_it_took_out_of_the_queue() -> None:
    """A child that was offered before its parent, and is taken before the parent is."""
    store = MemoryBlockStore()
    writer = view = SteppedWriter(store)
    blocks = chain(ONE, 3)
    assert writer.offer(ONE, blocks[2:])
    assert writer.step()
    assert writer.offer(ONE, blocks[:2])
    assert is_there(view, blocks) == [True] * 3
    assert view.delete([blocks[0].key]) == 2
    assert is_there(view, blocks) == [False] * 3
    assert writer.queue.counts().dropped == {"deleted": 2, "orphan": 1}


def test_a_namespace_is_deleted_with_what_waits(setup: Setup) -> None:
    stored, waiting = chain(ONE, 2), chain(ONE, 2, seed=2)
    assert setup.writer.offer(ONE, stored)
    setup.finish()
    setup.store.gate.clear()
    waiting += chain(ONE, 1, seed=3, after=stored[1])
    setup.offer_behind_a_write(waiting)
    assert setup.view.erase(lambda info: info == ONE).num_records == 5
    assert is_there(setup.view, [*stored, *waiting]) == [False] * 5
    setup.finish()
    assert is_there(setup.view, [*stored, *waiting]) == [False] * 5
    assert is_there(setup.view, chain(TWO, 1)) == [True]


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
    writer = view = WriteBehind(store, EventList(), FakeClock(), max_bytes=1 << 30, batch_bytes=1)
    blocks = chain(ONE, 150, size_bytes=64)
    accepted = 0
    missed: list[int] = []

    def read() -> None:
        done = False
        while not done:
            done = accepted == len(blocks) and writer.counts().queued == 0
            known = blocks[:accepted]
            seen = [presence.is_readable for presence in view.lookup([r.key for r in known])]  # type: ignore[misc]
            found = view.get(keys_of(known))
            if not all(seen) or None in found:
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
