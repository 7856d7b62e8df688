"""Eviction and deletion: records that are being read stay, and namespaces without records leave nothing behind."""

from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from random import Random

import lmdb
import pytest

from adapters.fake.environment import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.lmdb.environment import Environment
from adapters.lmdb.writer import RecordUses
from adapters.zstd.codec import ZstdStateCodec
from application.events import StoreFault
from application.ports.block_store import PutOutcome
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import BlockKey, HostPayload, Namespace, NamespaceInfo, Record, RecordKey, TensorSpec
from tests.support.effort import scaled
from tests.support.stores.store_records import chain, empty, keys_of, namespace_of, same, snapshot
from tests.support.telemetry.recording import RecordingEvents

KEPT = namespace_of("kept")
QUOTA_BYTES = 16 << 20
# As long as a real one: it takes a page of its own.
FINGERPRINT = '{"layout":"' + "sliced " * 400 + '"}'


@pytest.fixture
def path(scratch: Path) -> Path:
    return scratch / "store"


def open_store(path: Path, quota_bytes: int = QUOTA_BYTES) -> LmdbBlockStore:
    options = LmdbOptions(quota_bytes, num_threads=1)
    return LmdbBlockStore(path, options, ZstdStateCodec(compress=False), RecordingEvents(), FakeClock())


def tenant(number: int) -> NamespaceInfo:
    return NamespaceInfo(Namespace(sha256(b"tenant %d" % number).digest()), "model", FINGERPRINT)


def small(info: NamespaceInfo) -> Record:
    return Record(BlockKey(info.namespace, BlockHash(b"1" * 32)), BlockHash(info.namespace), 16, IdRow(range(16)), {})


def num_rows(store: LmdbBlockStore) -> int:
    with store._environment.reading() as txn:
        return int(txn.stat(store._environment.trees.ns)["entries"])


def check(store: LmdbBlockStore) -> None:
    assert store.check_integrity(payloads=True).problems == ()


def put(store: LmdbBlockStore, info: NamespaceInfo, records: list[Record]) -> None:
    store.open_namespace(info)
    assert store.put(records) is PutOutcome.STORED


def test_deleted_tenants_leave_no_row_and_no_page(path: Path) -> None:
    store = open_store(path)
    put(store, KEPT, chain(KEPT, 3))
    before_bytes = store.usage().stored_bytes
    for number in range(200):
        put(store, tenant(number), [small(tenant(number))])
        assert store.delete([small(tenant(number)).key]) == 1
    assert num_rows(store) == 1
    assert store.usage().stored_bytes <= before_bytes + 4 * 4096
    assert [space.info for space in store.usage().namespaces] == [KEPT]
    check(store)
    store.close()


def test_evicted_tenants_leave_no_row(path: Path) -> None:
    store = open_store(path, 1 << 20)
    for number in range(60):
        put(store, tenant(number), chain(tenant(number), 1, size_bytes=50_000))
    spaces = store.usage().namespaces
    assert store.usage().evicted == 60 - len(spaces) > 30
    assert num_rows(store) == len(spaces)
    assert all(space.num_blocks == 1 and space.info.fingerprint == FINGERPRINT for space in spaces)
    check(store)
    store.close()


def test_a_namespace_comes_back_with_its_name(path: Path) -> None:
    store, blocks = open_store(path), chain(KEPT, 2)
    put(store, KEPT, [*blocks, snapshot(blocks[1], [1])])
    assert store.delete(keys_of(blocks[:1])) == 3
    assert num_rows(store) == 0
    assert store.put(blocks) is PutOutcome.STORED
    assert all(map(same, store.get(keys_of(blocks)), blocks))
    assert [(space.info, space.num_blocks, space.num_snapshots) for space in store.usage().namespaces] == [(KEPT, 2, 0)]
    assert empty(store, KEPT) == 2
    assert num_rows(store) == 0
    check(store)
    store.close()


def test_a_namespace_emptied_by_the_eviction_for_its_own_record_stays(path: Path) -> None:
    store = open_store(path, 1 << 20)
    for seed in range(12):
        put(store, KEPT, chain(KEPT, 1, seed=seed, size_bytes=250_000))
        assert [space.info for space in store.usage().namespaces] == [KEPT]
        check(store)
    store.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbBlockStore]:
    store = LmdbBlockStore(tmp_path / "store", LmdbOptions(2 << 20), ZstdStateCodec(), RecordingEvents(), FakeClock())
    yield store
    assert store.check_integrity(payloads=True).problems == ()
    store.close()


def fill(store: LmdbBlockStore, seeds: range) -> list[Record]:
    records = [chain(KEPT, 1, seed=seed, size_bytes=100_000)[0] for seed in seeds]
    for record in records:
        assert store.put([record]) is PutOutcome.STORED
    return records


def present(store: LmdbBlockStore, records: list[Record]) -> list[bool]:
    return [record is not None for record in store.get(keys_of(records))]


def test_records_being_read_are_not_evicted(store: LmdbBlockStore) -> None:
    kept = fill(store, range(3))
    with store._uses.reading(keys_of(kept)):
        with store._uses.reading(keys_of(kept[:1])):
            fill(store, range(10, 30))
            assert present(store, kept) == [True] * 3
        fill(store, range(100, 120))
        assert present(store, kept) == [True] * 3
    fill(store, range(200, 220))
    assert present(store, kept) == [False] * 3


def test_a_store_full_of_records_being_read_is_full(store: LmdbBlockStore) -> None:
    kept: list[Record] = []
    outcome = PutOutcome.STORED
    with ExitStack() as reads:
        while outcome is PutOutcome.STORED:
            record = chain(KEPT, 1, seed=len(kept), size_bytes=100_000)
            outcome = store.put(record)
            if outcome is PutOutcome.STORED:
                kept += record
                reads.enter_context(store._uses.reading(keys_of(record)))
            assert len(kept) < 100
        assert outcome is PutOutcome.FULL
        assert all(present(store, kept))
    assert store.put(chain(KEPT, 1, seed=999, size_bytes=100_000)) is PutOutcome.STORED


def test_reading_while_the_file_is_replaced_reports_no_fault(
    store: LmdbBlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call is served before the open file is known: it could be another store's."""
    kept = fill(store, range(3))
    num_read, note_file = [0], Environment._note_file

    def read_first(environment: Environment, *arguments: lmdb.Environment) -> None:
        num_read[0] += 1
        present(store, kept)
        note_file(environment, *arguments)

    with monkeypatch.context() as opening:
        opening.setattr(Environment, "_note_file", read_first)
        store.compact()
    assert num_read[0]
    assert not store.usage().faults
    assert present(store, kept) == [True] * 3


def test_announced_namespaces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.lmdb.writer._MAX_NAMESPACES", 3)
    uses = RecordUses()
    for number in (0, 1, 2, 0, 3):
        uses.announce(tenant(number))
    assert [uses.announced(tenant(number).namespace) is not None for number in range(4)] == [True, False, True, True]


INFO = namespace_of("churn")
CHURN_QUOTA_BYTES = 48 << 20
SOURCE = memoryview(Random(0).randbytes(1 << 20))
SIZES = (100, 700, 1500, 4000, 9000, 20_000, 60_000)


def record(number: int, parent: BlockHash, size_bytes: int) -> Record:
    start = number * 64 % (len(SOURCE) - size_bytes)
    payload = HostPayload((TensorSpec("uint8", (size_bytes,)),), (SOURCE[start : start + size_bytes],))
    key = BlockKey(INFO.namespace, BlockHash(sha256(number.to_bytes(8, "big")).digest()))
    return Record(key, parent, 16, IdRow(range(16)), {GroupIndex(0): payload})


@pytest.mark.slow
def test_many_records_at_a_full_quota(path: Path) -> None:
    random, events = Random(1), RecordingEvents()
    store = LmdbBlockStore(
        path,
        LmdbOptions(CHURN_QUOTA_BYTES, num_threads=1),
        ZstdStateCodec(compress=False),
        events,
        FakeClock(),
    )
    recent: list[RecordKey] = []
    largest = number = 0
    num_records = scaled(30_000)
    while number < num_records:
        # Chains of one to twelve blocks, so that eviction has to work its way from the leaves.
        batch: list[Record] = []
        parent = BlockHash(INFO.namespace)
        for _ in range(random.randint(1, 12)):
            batch.append(record(number, parent, random.choice(SIZES)))
            parent = batch[-1].key.hash  # type: ignore[union-attr]
            number += 1
        assert store.put(batch) is PutOutcome.STORED
        recent = [*recent[-500:], *(one.key for one in batch)]
        store.touch(random.sample(recent, min(5, len(recent))))
        largest = max(largest, (path / "data.mdb").stat().st_size)
        if number % 5_000 < 12:
            usage = store.usage()
            assert usage.stored_bytes <= CHURN_QUOTA_BYTES
            if usage.evicted:
                assert usage.stored_bytes >= 0.85 * CHURN_QUOTA_BYTES
    assert largest <= CHURN_QUOTA_BYTES
    assert events.of(StoreFault) == []
    assert store.usage().evicted > num_records // 2
    report = store.check_integrity(payloads=True)
    assert report.problems == ()
    store.close()
