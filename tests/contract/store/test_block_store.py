"""The BlockStore contract, over every adapter. Faults that it allows are retried: what is asserted holds in spite."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event, Thread

import pytest

from adapters.fake.environment import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.memory.block_store import MemoryBlockStore
from adapters.zstd.codec import ZstdStateCodec
from application.ports.block_store import BlockStore, PutOutcome
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import BlockKey, Record, RecordKey
from tests.support.patience import PATIENCE_S
from tests.support.stores.faulty_stores import FaultInjectingBlockStore, FaultPlan
from tests.support.stores.store_records import BLOCK_TOKENS, chain, empty, held, keys_of, namespace_of, same, snapshot
from tests.support.telemetry.recording import RecordingEvents

QUOTA_BYTES = 2 << 20
ONE = namespace_of("one")
TWO = namespace_of("two")


def open_lmdb(path: Path) -> LmdbBlockStore:
    return LmdbBlockStore(path, LmdbOptions(QUOTA_BYTES), ZstdStateCodec(), RecordingEvents(), FakeClock())


def open_faulty(path: Path) -> FaultInjectingBlockStore:
    store = open_lmdb(path)
    return FaultInjectingBlockStore(store, FaultPlan(seed=1, get_misses=0.3, put_refusals=0.3))


ADAPTERS: dict[str, Callable[[Path], BlockStore]] = {
    "memory": lambda path: MemoryBlockStore(QUOTA_BYTES),
    "lmdb": open_lmdb,
    "lmdb-with-faults": open_faulty,
}


@pytest.fixture
def tolerated() -> set[str]:
    """Faults that may have happened by a test's end; tests add theirs."""
    return {"injected"}


@pytest.fixture(params=ADAPTERS)
def store(request: pytest.FixtureRequest, store_path: Path, tolerated: set[str]) -> Iterator[BlockStore]:
    store = ADAPTERS[request.param](store_path)
    store.open_namespace(ONE)
    store.open_namespace(TWO)
    yield store
    problems = store.check_integrity(payloads=True).problems
    faults = set(store.usage().faults) - tolerated
    store.close()
    assert problems == ()
    assert faults == set()


def put(store: BlockStore, records: Sequence[Record]) -> PutOutcome:
    for _ in range(50):
        if (outcome := store.put(records)) is not PutOutcome.UNAVAILABLE:
            return outcome
    return PutOutcome.UNAVAILABLE


def get(store: BlockStore, keys: Sequence[RecordKey]) -> list[Record | None]:
    found: list[Record | None] = [None] * len(keys)
    for _ in range(50):
        found = [old or new for old, new in zip(found, store.get(keys), strict=True)]
        if None not in found:
            break
    return found


def present(store: BlockStore, records: Sequence[Record]) -> list[bool]:
    return held(store, [record.key for record in records if isinstance(record.key, BlockKey)])


def fill(store: BlockStore, count: int, *, size_bytes: int = 100_000) -> list[Record]:
    """Single blocks, the oldest first."""
    records = [chain(ONE, 1, seed=seed, size_bytes=size_bytes)[0] for seed in range(1000, 1000 + count)]
    for record in records:
        assert put(store, [record]) is PutOutcome.STORED
    return records


def test_records_come_back_bit_for_bit(store: BlockStore) -> None:
    blocks = chain(ONE, 3, size_bytes=50_000)
    records = [*blocks, snapshot(blocks[-1], [7, 8]), snapshot(ONE, [1]), snapshot(blocks[0], [])]
    assert put(store, records) is PutOutcome.STORED
    assert all(map(same, get(store, keys_of(records)), records))


def test_a_record_without_state_is_a_record(store: BlockStore) -> None:
    first = chain(ONE, 1)[0]
    bare = Record(first.key, first.parent, first.position, IdRow(), {}, first.provenance)
    assert put(store, [bare]) is PutOutcome.STORED
    assert same(get(store, [bare.key])[0], bare)


def test_get_can_be_limited_to_state_groups(store: BlockStore) -> None:
    first = chain(ONE, 1)[0]
    assert put(store, [first]) is PutOutcome.STORED
    for wanted in (frozenset({GroupIndex(1)}), frozenset[GroupIndex]()):
        found = None
        while found is None:
            found = store.get([first.key], [wanted])[0]
        assert set(found.groups) == wanted
        assert found.key_ids == first.key_ids


def test_a_block_without_its_parent_is_refused(store: BlockStore) -> None:
    blocks = chain(ONE, 3)
    assert put(store, blocks[1:]) is PutOutcome.ORPHAN
    assert put(store, [blocks[0], blocks[2]]) is PutOutcome.ORPHAN
    assert put(store, [snapshot(blocks[0], [1])]) is PutOutcome.ORPHAN
    assert present(store, blocks) == [False, False, False]
    assert put(store, blocks[:1]) is PutOutcome.STORED
    assert put(store, blocks[1:]) is PutOutcome.STORED


def test_batches_are_prepared_ahead_and_put_in_their_order(store: BlockStore) -> None:
    blocks = chain(ONE, 6)
    early, late = blocks[:3], blocks[3:]
    assert store.prepare(late)() in (PutOutcome.ORPHAN, PutOutcome.UNAVAILABLE)
    for _ in range(50):
        puts = [store.prepare(early), store.prepare(late)]
        if [put() for put in puts] == [PutOutcome.STORED, PutOutcome.STORED]:
            break
    assert all(map(same, get(store, keys_of(blocks)), blocks))


def test_a_record_removed_while_a_batch_is_prepared_is_put_again(store: BlockStore) -> None:
    blocks = chain(ONE, 3)
    put(store, blocks)
    prepared = store.prepare(blocks)
    while store.delete(keys_of(blocks[:1])):
        pass
    if prepared() is not PutOutcome.STORED:
        put(store, blocks)  # a fault that was injected
    assert all(map(same, get(store, keys_of(blocks)), blocks))


def test_putting_again_changes_nothing(store: BlockStore) -> None:
    blocks = chain(ONE, 2)
    assert put(store, blocks) is PutOutcome.STORED
    before = store.usage().namespaces
    assert put(store, [*blocks, *blocks]) is PutOutcome.STORED
    assert store.usage().namespaces == before


def test_followers_name_what_follows_a_block(store: BlockStore) -> None:
    trunk = chain(ONE, 2)
    branches = [chain(ONE, 1, seed=seed, after=trunk[-1])[0] for seed in range(5)]
    tails = [snapshot(trunk[-1], [1]), snapshot(trunk[-1], [1, 2])]
    assert put(store, [*trunk, *branches, *tails]) is PutOutcome.STORED
    end = trunk[-1].key.hash  # type: ignore[union-attr]
    found = store.followers(ONE.namespace, end, 10)
    assert sorted(map(tuple, found)) == sorted(tuple(record.key_ids) for record in (*branches, *tails))
    assert sorted(len(tokens) for tokens in store.followers(ONE.namespace, end, 1)) == [1, BLOCK_TOKENS]
    assert len(store.followers(ONE.namespace, end, 3)) == 3 + len(tails)
    assert list(store.followers(ONE.namespace, BlockHash(ONE.namespace), 10)) == [trunk[0].key_ids]
    assert list(store.followers(TWO.namespace, BlockHash(TWO.namespace), 10)) == []


def test_namespaces_share_nothing(store: BlockStore) -> None:
    mine = chain(ONE, 1)[0]
    assert isinstance(mine.key, BlockKey)
    theirs = Record(
        BlockKey(TWO.namespace, mine.key.hash), BlockHash(TWO.namespace), 16, mine.key_ids, {}, mine.provenance
    )
    assert put(store, [mine]) is PutOutcome.STORED
    assert present(store, [theirs]) == [False]
    assert put(store, [theirs]) is PutOutcome.STORED
    assert same(get(store, [theirs.key])[0], theirs)
    assert store.erase(lambda info: info == TWO).num_records == 1
    assert same(get(store, [mine.key])[0], mine)


def test_deleting_removes_following_records(store: BlockStore) -> None:
    trunk = chain(ONE, 3)
    branch = chain(ONE, 2, seed=5, after=trunk[1])
    hanging = snapshot(branch[0], [1])
    assert put(store, [*trunk, *branch, hanging]) is PutOutcome.STORED
    assert store.delete([branch[0].key]) == 3
    assert present(store, [*trunk, *branch]) == [True, True, True, False, False]
    assert store.delete([branch[0].key, hanging.key]) == 0
    assert store.delete([trunk[0].key]) == 3
    assert sum(space.num_blocks + space.num_snapshots for space in store.usage().namespaces) == 0


def test_usage_lists_a_namespace_while_it_holds_records(store: BlockStore) -> None:
    assert store.usage().namespaces == ()
    mine, theirs = chain(ONE, 2), chain(TWO, 1)
    assert put(store, mine) is put(store, theirs) is PutOutcome.STORED
    assert {space.info for space in store.usage().namespaces} == {ONE, TWO}
    assert store.delete(keys_of(theirs)) == 1
    assert {space.info for space in store.usage().namespaces} == {ONE}
    store.open_namespace(TWO)
    assert {space.info for space in store.usage().namespaces} == {ONE}
    assert put(store, theirs) is PutOutcome.STORED
    assert {space.info for space in store.usage().namespaces} == {ONE, TWO}


def test_usage_adds_up(store: BlockStore) -> None:
    blocks = chain(ONE, 4, size_bytes=30_000)
    assert put(store, [*blocks, snapshot(blocks[2], [1])]) is PutOutcome.STORED
    usage = store.usage()
    one = next(space for space in usage.namespaces if space.info.namespace == ONE.namespace)
    assert (one.info, one.num_blocks, one.num_snapshots) == (ONE, 4, 1)
    assert one.raw_bytes == 4 * 45_000 + 4096
    assert 0 < one.stored_bytes <= usage.stored_bytes <= usage.quota_bytes == QUOTA_BYTES


def test_the_quota_holds_and_the_oldest_leaves_go_first(store: BlockStore) -> None:
    records = fill(store, 60)
    usage = store.usage()
    assert usage.stored_bytes <= QUOTA_BYTES
    seen = present(store, records)
    assert usage.evicted == seen.count(False) > 0
    assert seen == sorted(seen)


def test_a_use_keeps_a_record(store: BlockStore) -> None:
    favourite = fill(store, 1)[0]
    for seed in range(60):
        store.touch([favourite.key])
        assert put(store, chain(ONE, 1, seed=seed, size_bytes=100_000)) is PutOutcome.STORED
    assert present(store, [favourite]) == [True]


def test_eviction_never_takes_a_parent_before_its_children(store: BlockStore) -> None:
    long = chain(ONE, 8, size_bytes=50_000)
    assert put(store, long) is PutOutcome.STORED
    for seed in range(40):
        assert put(store, chain(ONE, 1, seed=seed, size_bytes=50_000)) is PutOutcome.STORED
        seen = present(store, long)
        assert seen == sorted(seen, reverse=True)
    assert not seen[-1]


def test_a_growing_chain_keeps_its_own_blocks(store: BlockStore) -> None:
    fill(store, 30)
    last = None
    grown: list[Record] = []
    for seed in range(12):
        piece = chain(ONE, 1, seed=seed, size_bytes=60_000, after=last)
        assert put(store, piece) is PutOutcome.STORED
        grown.extend(piece)
        last = piece[-1]
    assert all(present(store, grown))


def test_a_batch_beyond_the_quota_stores_nothing(store: BlockStore) -> None:
    before = fill(store, 2)
    blocks = chain(TWO, 8, size_bytes=400_000)
    assert put(store, blocks) is PutOutcome.FULL
    assert present(store, [*before, *blocks]) == [True] * 2 + [False] * 8


def test_absent_records_are_ignored(store: BlockStore) -> None:
    absent = chain(ONE, 1)[0]
    store.touch([absent.key])
    assert store.delete([absent.key]) == 0
    assert empty(store, namespace_of("never")) == store.erase(lambda info: info.model == "never").num_records == 0
    assert list(store.get([absent.key])) == [None]
    assert list(store.get([])) == []
    assert put(store, []) is PutOutcome.STORED


def test_an_unannounced_namespace_is_accepted(store: BlockStore) -> None:
    blocks = chain(namespace_of("unannounced"), 2)
    assert put(store, blocks) is PutOutcome.STORED
    assert all(map(same, get(store, keys_of(blocks)), blocks))


def test_after_close_reads_miss_and_writes_are_refused(store: BlockStore) -> None:
    blocks = chain(ONE, 2)
    assert put(store, blocks) is PutOutcome.STORED
    store.close()
    store.close()
    assert present(store, blocks) == [False, False]
    assert list(store.get(keys_of(blocks))) == [None, None]
    assert store.put(blocks) is PutOutcome.UNAVAILABLE
    assert store.delete(keys_of(blocks)) == 0
    assert list(store.followers(ONE.namespace, blocks[0].parent, 5)) == []
    store.touch(keys_of(blocks))
    store.flush()
    assert store.usage().stored_bytes == 0


def test_a_batch_is_visible_whole_or_not_at_all(store: BlockStore) -> None:
    batches = [chain(ONE, 4, seed=seed, size_bytes=2000) for seed in range(40)]
    done, was_read = Event(), Event()
    torn: list[list[bool]] = []

    def watch() -> None:
        while not done.is_set():
            for batch in batches:
                seen = [record is not None for record in store.get(keys_of(batch))]
                was_read.set()
                if len(set(seen)) > 1 and not isinstance(store, FaultInjectingBlockStore):
                    torn.append(seen)

    watcher = Thread(target=watch)
    watcher.start()
    try:
        for batch in batches:  # with a read after each: one that stood still would keep pages that the next ones need
            was_read.clear()
            assert put(store, batch) is PutOutcome.STORED
            assert was_read.wait(PATIENCE_S)
    finally:
        done.set()
        watcher.join()
    assert torn == []


def test_threads_may_do_everything_at_once(store: BlockStore, tolerated: set[str]) -> None:
    tolerated.add("map_full")  # a reader that loses the processor keeps old pages, and writes are refused meanwhile
    wrong: list[RecordKey] = []

    def work(number: int) -> None:
        for seed in range(15):
            blocks = chain(ONE if number % 2 else TWO, 3, seed=number * 100 + seed, size_bytes=20_000)
            put(store, blocks)
            for stored, record in zip(store.get(keys_of(blocks)), blocks, strict=True):
                if stored is not None and not same(stored, record):
                    wrong.append(record.key)
            store.touch(keys_of(blocks))
            if seed % 5 == 4:
                store.delete(keys_of(blocks[1:2]))
                store.usage()

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.usage().stored_bytes <= QUOTA_BYTES
