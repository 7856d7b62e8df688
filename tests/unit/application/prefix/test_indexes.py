"""Which indexes are kept while there are more namespaces than may be."""

from adapters.memory.block_store import MemoryBlockStore
from application.services.prefix.indexes import MAX_NAMESPACES, Indexes
from domain.prefix.index import HOT, STORED
from tests.support.stores.stepped_writer import SteppedWriter
from tests.support.stores.store_records import chain, keys_of, namespace_of

INFO = namespace_of("own")
KEYS = keys_of(chain(INFO, 2, size_bytes=8))


def others(indexes: Indexes) -> None:
    """As many namespaces come as are kept."""
    for number in range(MAX_NAMESPACES):
        indexes.epoch(namespace_of(f"other {number}"))


def test_what_is_in_memory_is_known_however_many_namespaces_come() -> None:
    indexes = Indexes()
    indexes.epoch(INFO)
    indexes.add(KEYS, HOT)
    others(indexes)
    assert indexes.places(KEYS) == [HOT, HOT]


def test_what_a_sequence_leaves_is_known_though_its_namespace_was_idle_for_long() -> None:
    indexes = Indexes()
    held = indexes.epoch(INFO)  # by a sequence that computes
    others(indexes)
    indexes.add(KEYS, HOT)
    del held
    assert indexes.places(KEYS) == [HOT, HOT]


def test_what_was_idle_for_longest_is_forgotten() -> None:
    indexes = Indexes(lambda _: [])
    indexes.load(indexes.epoch(INFO))
    assert indexes.epoch(INFO).is_known
    others(indexes)
    assert not indexes.epoch(INFO).is_known


def test_what_leaves_the_store_before_its_put_is_settled_is_not_there() -> None:
    store, records = MemoryBlockStore(1 << 20), chain(INFO, 2, size_bytes=8)
    writer, indexes = SteppedWriter(store), Indexes(store.keys)
    writer.report_to(indexes)
    epoch = indexes.epoch(INFO)  # kept, as by a sequence
    writer.offer(INFO, records)
    writer.pump(2)
    store.delete(KEYS[1:])
    writer.pump()
    assert indexes.places(KEYS) == [STORED, 0]
    assert epoch.keys() == KEYS[:1]


def test_removals_are_remembered_only_while_records_are_put() -> None:
    store = MemoryBlockStore(2_000)
    writer, indexes = SteppedWriter(store), Indexes(store.keys)
    writer.report_to(indexes)
    for number in range(8):  # each evicts what came before
        info = namespace_of(str(number))
        writer.offer(info, chain(info, 4, size_bytes=64))
        writer.pump()
        store.delete(store.keys(info.namespace)[-1:])
    assert store.usage().evicted
    assert not indexes._removals
