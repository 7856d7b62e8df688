"""What every shared store does, the one in memory and the one on a real server."""

from collections.abc import Callable, Iterator

import pytest

from adapters.resp.shared_store import PIECE_BYTES, RespSharedStore
from adapters.zstd.codec import ZstdStateCodec
from application.ports.shared_store import SharedFailure, SharedHint, SharedStore, SharedStoreError
from domain.ids import BlockHash
from domain.prefix.fingerprint import NamespaceFilter
from domain.prefix.record import Record
from tests.support.processes.servers.redis_server import RedisServer, needs_redis, redis_server
from tests.support.stores.shared_stores import MemorySharedStore, SharedMemory
from tests.support.stores.store_records import chain, keys_of, namespace_of, same, snapshot

ONE, TWO = namespace_of("one"), namespace_of("two?salt=alice")

Connect = Callable[[str], SharedStore]
"""Returns one more server's view, with the key of this fleet."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["memory", pytest.param("resp", marks=needs_redis)])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    made: list[SharedStore] = []
    memory = SharedMemory()

    def one(fleet: str = "fleet") -> SharedStore:
        if request.param == "memory":
            made.append(MemorySharedStore(memory, fleet))
        else:
            made.append(RespSharedStore(request.getfixturevalue("server").url, ZstdStateCodec(), fleet.encode()))
        return made[-1]

    yield one
    for store in made:
        if request.param == "resp":
            RespSharedStore(request.getfixturevalue("server").url, ZstdStateCodec(), b"fleet").erase()
        store.close()


def found(store: SharedStore, records: list[Record]) -> list[bool]:
    return [hint is not None for hint in store.find(keys_of(records))]


def read(store: SharedStore, records: list[Record]) -> list[Record | None]:
    return list(store.read(hints(store, records)).records)


def hints(store: SharedStore, records: list[Record]) -> list[SharedHint]:
    return [hint for hint in store.find(keys_of(records)) if hint is not None]


def test_one_server_reads_what_another_put_bit_for_bit(connect: Connect):
    writer, reader = connect("fleet"), connect("fleet")
    blocks = chain(ONE, 3)
    records = [*blocks, snapshot(blocks[-1], [7, 8]), snapshot(ONE, [1])]
    put = writer.put(ONE, records)
    assert (put.num_written, put.num_present) == (5, 0)
    assert put.num_bytes > 0
    assert found(reader, records) == [True] * 5
    answer = reader.read(hints(reader, records))
    assert all(same(one, record) for one, record in zip(answer.records, records, strict=True))
    assert all(same(one, record) for one, record in zip(answer.encoded, records, strict=True))
    assert answer.num_rejected == 0
    assert answer.num_bytes > 0


def test_a_record_of_several_values_is_read_whole(connect: Connect):
    (large,) = chain(ONE, 1, size_bytes=3 * PIECE_BYTES)
    store = connect("fleet")
    store.put(ONE, [large])
    assert same(read(store, [large])[0], large)


def test_what_is_present_is_not_written_again(connect: Connect):
    first, second = connect("fleet"), connect("fleet")
    blocks = chain(ONE, 3)
    first.put(ONE, blocks[:2])
    put = second.put(ONE, blocks)
    assert (put.num_written, put.num_present) == (1, 2)


def test_absent_records_are_not_found_and_a_hint_may_miss(connect: Connect):
    store = connect("fleet")
    blocks = chain(ONE, 2)
    store.put(ONE, blocks)
    known = hints(store, blocks)
    assert store.erase() == 2
    assert found(store, blocks) == [False, False]
    assert list(store.read(known).records) == [None, None]
    assert store.read(known).num_rejected == 0
    assert store.find([]) == []
    assert list(store.read([]).records) == []


def test_lengths_of_snapshots_by_their_block(connect: Connect):
    store = connect("fleet")
    (block,) = chain(ONE, 1)
    store.put(
        ONE, [block, snapshot(block, [5] * 3), snapshot(block, [6] * 3), snapshot(block, []), snapshot(ONE, [9] * 15)]
    )
    root = BlockHash(ONE.namespace)
    assert list(store.lengths(ONE.namespace, [block.key.hash, root, BlockHash(b"x" * 32)])) == [  # type: ignore[union-attr]
        frozenset({0, 3}),
        frozenset({15}),
        frozenset(),
    ]
    assert list(store.lengths(TWO.namespace, [root])) == [frozenset()]


def test_fleets_and_namespaces_share_nothing(connect: Connect):
    ours, theirs = connect("fleet"), connect("another fleet")
    blocks = chain(ONE, 2)
    ours.put(ONE, blocks)
    assert found(theirs, blocks) == [False, False]
    assert list(theirs.read(hints(ours, blocks)).records) == [None, None]
    theirs.put(ONE, blocks[:1])
    assert theirs.erase() == 1
    assert found(ours, blocks) == [True, True]


def test_a_choice_of_namespaces_is_erased(connect: Connect):
    store = connect("fleet")
    mine, alices = chain(ONE, 2), chain(TWO, 2)
    store.put(ONE, mine)
    store.put(TWO, [*alices, snapshot(alices[-1], [1, 2])])
    chosen = NamespaceFilter.of(None, "alice", "")
    assert connect("fleet").erase(chosen.includes) == 3
    assert found(store, mine) == [True, True]
    assert found(store, alices) == [False, False]


def test_after_close_everything_raises(connect: Connect):
    store = connect("fleet")
    (block,) = chain(ONE, 1)
    store.ping()
    store.close()
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: store.find([block.key]),
        lambda: store.lengths(ONE.namespace, [block.parent]),
        lambda: store.put(ONE, [block]),
        store.erase,
        store.ping,
    ]
    for call in calls:
        with pytest.raises(SharedStoreError) as raised:
            call()
        assert raised.value.failure is SharedFailure.UNREACHABLE


def test_the_order_of_a_chain_does_not_matter(connect: Connect):
    store = connect("fleet")
    blocks = chain(ONE, 3)
    store.put(ONE, [blocks[2], blocks[0]])
    assert found(store, blocks) == [True, False, True]
