"""The quota of a store: saved, lowered with and without room for a copy, and invalid values."""

import json
from collections.abc import Iterator
from mmap import PAGESIZE
from pathlib import Path

import pytest

from adapters.fake.environment import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore
from application.ports.block_store import OpenFailure, PutOutcome, StoreOpenError
from application.settings import StoreSettings
from domain.byte_size import ByteSize
from domain.prefix.record import Record
from interfaces.composition.store import open_lmdb_store, quota_bytes
from tests.support.stores.lmdb_store import faults, leave_free, open_store, small_volume
from tests.support.stores.store_records import chain, keys_of, namespace_of, same
from tests.support.telemetry.recording import RecordingEvents

INFO = namespace_of("one")
MIB = 1 << 20
LARGE_BYTES, SMALL_BYTES = 16 * MIB, 4 * MIB


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    with small_volume(tmp_path / "volume", 40 * MIB) as folder:
        yield folder


def open_default(path: Path, events: RecordingEvents | None = None, quota: ByteSize | None = None) -> LmdbBlockStore:
    settings = StoreSettings(dir=str(path), quota=quota)
    return open_lmdb_store(settings, events or RecordingEvents(), FakeClock())


def quota_of(path: Path, quota: ByteSize | None = None) -> int:
    store = open_default(path, quota=quota)
    store.close()
    return store._options.quota_bytes


def fill(path: Path, quota: int) -> list[Record]:
    """More than fits, the oldest first."""
    store = open_store(path, quota_bytes=quota)
    records = [record for seed in range(80) for record in chain(INFO, 1, seed=seed, size_bytes=150_000)]
    for record in records:
        assert store.put([record]) is PutOutcome.STORED
    store.close()
    return records


def num_there(store: LmdbBlockStore, records: list[Record]) -> int:
    found = store.get(keys_of(records))
    there = [record is not None for record in found]
    assert there == sorted(there), "not the oldest went first"
    assert all(record is None or same(record, put) for record, put in zip(found, records, strict=True))
    return sum(there)


def file_bytes(path: Path) -> int:
    return (path / "data.mdb").stat().st_size


@pytest.mark.parametrize("quota", [None, ByteSize(share=0.5)], ids=["default", "share"])
def test_a_share_is_taken_of_what_was_free_at_first(volume: Path, quota: ByteSize | None) -> None:
    path = volume / "store"
    first = quota_of(path, quota)
    leave_free(volume, 12 * MIB)
    assert quota_of(path, quota) == first
    settings = StoreSettings(dir=str(path), quota=quota)
    assert quota_bytes(settings, path) == first


def test_another_setting_counts(volume: Path) -> None:
    path = volume / "store"
    shares = [quota_of(path, ByteSize(share=share)) for share in (0.5, 0.25)]
    assert shares[1] == pytest.approx(shares[0] / 2, rel=0.1)
    assert quota_of(path, ByteSize(num_bytes=3 * MIB)) == 3 * MIB
    assert quota_of(path, ByteSize(share=0.25)) == shares[1]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"setting": "default"}', '{"setting": "default", "quota_bytes": -1}']
)
def test_an_invalid_quota_file_is_replaced(tmp_path: Path, content: str) -> None:
    first = quota_of(tmp_path / "store")
    (tmp_path / "store" / "quota").write_text(content)
    assert quota_of(tmp_path / "store") == pytest.approx(first, rel=0.2)
    assert json.loads((tmp_path / "store" / "quota").read_text())["quota_bytes"] > 0


def test_a_quota_beyond_the_volume_is_the_volume(volume: Path) -> None:
    assert quota_of(volume / "store", ByteSize(num_bytes=1 << 60)) == 40 * MIB


@pytest.mark.parametrize("quota", [-1, 0, (1 << 20) - 1, 1 << 47, 1 << 62, 1 << 64, 10**30])
def test_an_invalid_quota_is_an_error_that_names_it(tmp_path: Path, quota: int) -> None:
    with pytest.raises(StoreOpenError, match=f"store.quota must be from .* bytes, not {quota}$"):
        open_store(tmp_path / "store", quota_bytes=quota)


def test_a_quota_need_not_be_whole_pages(tmp_path: Path) -> None:
    fill(tmp_path / "store", SMALL_BYTES + 4097 + 3)
    store = open_store(tmp_path / "store", quota_bytes=SMALL_BYTES + 4097 + 3)
    assert store.check_integrity(payloads=True).problems == ()
    assert file_bytes(tmp_path / "store") <= SMALL_BYTES + 4097 + 3
    store.close()


def test_shrinking_needs_room_for_what_stays(volume: Path) -> None:
    path, events = volume / "store", RecordingEvents()
    records = fill(path, LARGE_BYTES)
    leave_free(volume, SMALL_BYTES + 2 * MIB)
    store = open_store(path, events, quota_bytes=SMALL_BYTES)
    assert file_bytes(path) <= SMALL_BYTES
    assert num_there(store, records) > 10
    assert store.check_integrity(payloads=True).problems == ()
    assert faults(events) == []
    store.close()


@pytest.mark.parametrize("free_bytes", [MIB, 0], ids=["little room", "no room"])
def test_without_room_for_a_copy_the_old_file_stays_in_use(volume: Path, free_bytes: int) -> None:
    path, events = volume / "store", RecordingEvents()
    records = fill(path, LARGE_BYTES)
    before_bytes = file_bytes(path)
    leave_free(volume, free_bytes)
    store = open_store(path, events, quota_bytes=SMALL_BYTES)
    assert faults(events) == ["no_room"]
    assert num_there(store, records) > 10
    # Evicting may add some pages to a file without a free one, where the volume has them.
    settled_bytes = file_bytes(path)
    assert settled_bytes <= before_bytes + MIB // 4
    more = [record for seed in range(100, 160) for record in chain(INFO, 1, seed=seed, size_bytes=150_000)]
    expected = PutOutcome.STORED if free_bytes else PutOutcome.FULL
    assert {store.put([record]) for record in more} == {expected}
    assert file_bytes(path) == settled_bytes
    assert store.usage().faults["no_room"] == 1
    assert store.check_integrity(payloads=True).problems == ()
    with pytest.raises(StoreOpenError, match="no room") as refused:
        store.compact()
    assert refused.value.failure is OpenFailure.VOLUME

    leave_free(volume, 20 * MIB)
    assert store.compact().after_bytes <= SMALL_BYTES
    assert num_there(store, more if free_bytes else records) > 10
    assert store.put(chain(INFO, 1, seed=999, size_bytes=150_000)) is PutOutcome.STORED
    assert file_bytes(path) <= SMALL_BYTES
    assert store.usage().stored_bytes <= store.usage().quota_bytes == SMALL_BYTES
    assert store.check_integrity(payloads=True).problems == ()
    store.close()


def test_a_quota_of_the_size_of_the_file_leaves_room_to_write(tmp_path: Path) -> None:
    path, events = tmp_path / "store", RecordingEvents()
    store = open_store(path, quota_bytes=SMALL_BYTES)
    for seed in range(20):
        assert store.put(chain(INFO, 3, seed=seed, size_bytes=20_000)) is PutOutcome.STORED
    store.close()
    quota = file_bytes(path)
    store = open_store(path, events, quota_bytes=quota)
    for seed in range(100, 110):
        assert store.put(chain(INFO, 3, seed=seed, size_bytes=40_000)) is PutOutcome.STORED
    assert file_bytes(path) <= quota
    assert faults(events) == []
    store.close()


def test_an_unfinished_compaction_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    open_store(path, quota_bytes=SMALL_BYTES).close()
    (path / "data.compact").write_bytes(bytes(1000))
    open_store(path, quota_bytes=SMALL_BYTES).close()
    assert not (path / "data.compact").exists()


def test_damage_found_while_shrinking_empties(tmp_path: Path) -> None:
    path, events = tmp_path / "store", RecordingEvents()
    fill(path, LARGE_BYTES)
    data = bytearray((path / "data.mdb").read_bytes())
    # The bound of the free space in leaves with many nodes: not those that opening reads.
    leaves = [at for at in range(0, len(data), PAGESIZE) if data[at + 10 : at + 12] == b"\2\0" and data[at + 12] > 40]
    for at in leaves:
        data[at + 12] ^= 0x40
    (path / "data.mdb").write_bytes(data)
    store = open_store(path, events, quota_bytes=SMALL_BYTES)
    assert faults(events) == ["damaged"]
    assert store.put(chain(INFO, 1)) is PutOutcome.STORED
    store.close()
