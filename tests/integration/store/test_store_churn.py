"""A hundred thousand records of mixed sizes through a store that is always full."""

import shutil
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from adapters.fake.environment import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.zstd.codec import ZstdStateCodec
from application.events import StoreFault
from application.ports.block_store import PutOutcome
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import BlockKey, HostPayload, Record, RecordKey, TensorSpec
from tests.support.effort import scaled
from tests.support.processes.processes import fast_folder
from tests.support.stores.store_records import EventList, namespace_of

INFO = namespace_of("churn")
QUOTA_BYTES = 48 << 20
SOURCE = memoryview(Random(0).randbytes(1 << 20))
SIZES = (100, 700, 1500, 4000, 9000, 20_000, 60_000)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cairn-churn-", dir=fast_folder(tmp_path)))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def record(number: int, parent: BlockHash, size_bytes: int) -> Record:
    start = number * 64 % (len(SOURCE) - size_bytes)
    payload = HostPayload((TensorSpec("uint8", (size_bytes,)),), (SOURCE[start : start + size_bytes],))
    key = BlockKey(INFO.namespace, BlockHash(sha256(number.to_bytes(8, "big")).digest()))
    return Record(key, parent, 16, IdRow(range(16)), {GroupIndex(0): payload})


@pytest.mark.slow
def test_many_records_at_a_full_quota(folder: Path) -> None:
    random, events = Random(1), EventList()
    store = LmdbBlockStore(
        folder / "store", LmdbOptions(QUOTA_BYTES, num_threads=1), ZstdStateCodec(compress=False), events, FakeClock()
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
        largest = max(largest, (folder / "store" / "data.mdb").stat().st_size)
        if number % 5_000 < 12:
            usage = store.usage()
            assert usage.stored_bytes <= QUOTA_BYTES
            if usage.evicted:
                assert usage.stored_bytes >= 0.85 * QUOTA_BYTES
    assert largest <= QUOTA_BYTES
    assert events.of(StoreFault) == []
    assert store.usage().evicted > num_records // 2
    report = store.check_integrity(payloads=True)
    assert report.problems == ()
    store.close()
