"""Frames gathered by the kernel are the ones in the map, wherever their pieces lie, and what is wrong is found."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from errno import EIO, ENOSYS, EPERM
from pathlib import Path
from random import Random

import numpy as np
import pytest

from adapters.fake.clock import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.lmdb.faults import Damaged
from adapters.lmdb.page_file import PageFile
from adapters.lmdb.pages import PageGeometry
from adapters.zstd.codec import ZstdStateCodec
from application.ports.record_writer import PutOutcome
from application.settings import StoreSettings
from domain.byte_size import ByteSize
from domain.ids import GroupIndex
from domain.payload import HostPayload, StatePayload, TensorSpec
from domain.record import Record
from interfaces.composition.store import open_lmdb_store
from tests.support.gathering import GATHERS_ALL
from tests.support.store_records import EventList, chain, keys_of, namespace_of, same

INFO = namespace_of("gathered")
QUOTA_BYTES = 32 << 20
PIECE_BYTES = PageGeometry(os.sysconf("SC_PAGESIZE")).piece_bytes

pytestmark = pytest.mark.skipif(not hasattr(os, "preadv"), reason="this system has no preadv: the map is read")


class Reads:
    """How many bytes and views each call was for."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.calls)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    reads, read = Reads(), PageFile.read

    def noted(file: PageFile, offset: int, views: Sequence[memoryview]) -> bool:
        reads.calls.append((sum(view.nbytes for view in views), len(views)))
        return read(file, offset, views)

    monkeypatch.setattr(PageFile, "read", noted)
    return reads


def open_store(path: Path, *, read_only: bool = False, quota_bytes: int = QUOTA_BYTES) -> LmdbBlockStore:
    options = LmdbOptions(0 if read_only else quota_bytes, read_only=read_only)
    codec = ZstdStateCodec(compress=False, keeps_planes=True)
    return LmdbBlockStore(path, options, codec, EventList(), FakeClock(), gathering=GATHERS_ALL)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbBlockStore]:
    store = open_store(tmp_path / "store")
    yield store
    assert store.check_integrity(payloads=True).problems == ()
    assert not store.usage().faults
    store.close()


def put(store: LmdbBlockStore, size_bytes: int, seed: int = 0) -> Record:
    """Of two groups, the second of half as many bytes."""
    (record,) = chain(INFO, 1, seed=seed)
    random = np.random.default_rng(abs(seed))
    groups: dict[GroupIndex, StatePayload] = {}
    for index, length in enumerate((size_bytes // 2 * 2, size_bytes // 2)):
        spec = TensorSpec("uint8", (length,)) if index else TensorSpec("bfloat16", (length // 2,))
        groups[GroupIndex(index)] = HostPayload((spec,), (memoryview(random.bytes(length)),))
    record = replace(record, groups=groups)
    assert store.put([record]) is PutOutcome.STORED
    return record


def is_whole(store: LmdbBlockStore, record: Record) -> bool:
    found = store.get([record.key])[0]
    return found is not None and same(found, record)


def test_a_frame_of_many_pieces_comes_by_one_call(store: LmdbBlockStore, reads: Reads) -> None:
    record = put(store, 8 * PIECE_BYTES)
    assert is_whole(store, record)
    assert len(reads) == len(record.groups)
    assert reads.calls[0][0] > 8 * PIECE_BYTES


@pytest.mark.parametrize("beyond", [-500, -100, 0, 100, 1500, 3000, 5000])
def test_the_last_piece_may_be_of_any_size(store: LmdbBlockStore, reads: Reads, beyond: int) -> None:
    """A small one lies in the leaf page; a group begins where the one before ends, within a piece."""
    assert is_whole(store, put(store, 2 * PIECE_BYTES + beyond, seed=beyond))
    assert len(reads) >= 2


def test_more_pieces_than_one_leaf_page_names(tmp_path: Path, reads: Reads) -> None:
    page_bytes = os.sysconf("SC_PAGESIZE")
    if page_bytes > 4096:
        pytest.skip("leaf pages of this machine name more pieces than are quickly written")
    data = np.arange(PIECE_BYTES * (page_bytes // 28) // 4, dtype=np.uint32).data.cast("B").toreadonly()
    payload = HostPayload((TensorSpec("uint8", (data.nbytes,)),), (data,))
    (record,) = chain(INFO, 1)
    record = replace(record, groups={GroupIndex(0): payload})
    store = open_store(tmp_path / "store", quota_bytes=2 * data.nbytes)
    assert store.put([record]) is PutOutcome.STORED
    assert is_whole(store, record)
    assert sum(size_bytes for size_bytes, _ in reads.calls) > data.nbytes
    assert len(reads) <= 3
    store.close()


def test_pieces_that_lie_apart_are_read_where_they_are(tmp_path: Path, reads: Reads) -> None:
    """Room that small records left between others is used again, here and there."""
    store, random = open_store(tmp_path / "store"), Random(1)
    small = [put(store, 200_000, seed) for seed in range(40)]
    for record in random.sample(small, 25):
        store.delete([record.key])
    put(store, 1000, 98)  # what one transaction frees, the next but one may use
    put(store, 1000, 99)
    large = [put(store, 5 * PIECE_BYTES + 7777 * seed, 100 + seed) for seed in range(3)]
    reads.calls.clear()
    assert all(is_whole(store, record) for record in large)
    assert len(reads) > sum(len(record.groups) for record in large)
    assert not store.usage().faults
    store.close()
    again = open_store(tmp_path / "store", read_only=True)
    assert all(is_whole(again, record) for record in large)
    again.close()


def test_one_flipped_bit_anywhere_is_found_and_the_record_goes(tmp_path: Path, reads: Reads) -> None:
    path, random = tmp_path / "store", Random(2)
    store = open_store(path)
    records = [put(store, 3 * PIECE_BYTES, seed) for seed in range(4)]
    found = [store.get([record.key])[0] for record in records]
    assert all(one is not None and same(one, record) for one, record in zip(found, records, strict=True))
    data = (path / "data.mdb").read_bytes()
    for record in records[:3]:
        needle = bytes(record.groups[GroupIndex(1)].buffers()[0][5000:5500])
        at = data.index(needle) + random.randrange(len(needle))
        with (path / "data.mdb").open("r+b") as file:
            file.seek(at)
            file.write(bytes([data[at] ^ 1 << random.randrange(8)]))
    reads.calls.clear()
    assert store.get(keys_of(records[:3])) == [None] * 3
    assert len(reads) >= 3
    assert store.usage().faults == {"checksum": 3}
    assert is_whole(store, records[3])
    assert store.get(keys_of(records[:3])) == [None] * 3
    assert store.usage().faults == {"checksum": 3}
    store.close()


def test_without_the_call_the_map_is_read(tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "preadv")
    store = open_store(tmp_path / "store")
    assert is_whole(store, put(store, 4 * PIECE_BYTES))
    assert not reads.calls
    store.close()


@pytest.mark.parametrize("code", [ENOSYS, EPERM])
def test_where_the_call_is_refused_the_map_is_read(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """By the kernel's stand-in of a sandbox, or by what confines a process."""

    def refuse(*_arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "preadv", refuse)
    store = open_store(tmp_path / "store")
    assert is_whole(store, put(store, 4 * PIECE_BYTES))
    assert not reads.calls
    assert not store.usage().faults
    store.close()


def test_a_disk_that_fails_to_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "store")
    record = put(store, 4 * PIECE_BYTES)

    def fail(*_arguments: object) -> int:
        raise OSError(EIO, os.strerror(EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "preadv", fail)
        assert not is_whole(store, record)
    assert set(store.usage().faults) == {"io_error"}
    assert is_whole(store, record)
    store.close()


def test_a_file_that_is_not_the_one_of_the_map_is_not_believed(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.write_bytes(bytes(16 << 20))
    init = PageFile.__init__

    def init_other(file: PageFile, _path: Path) -> None:
        init(file, other)

    monkeypatch.setattr(PageFile, "__init__", init_other)
    store = open_store(tmp_path / "store")
    assert is_whole(store, put(store, 4 * PIECE_BYTES))
    assert not reads.calls
    assert not store.usage().faults
    store.close()


def test_a_file_that_ends_too_early_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 10_000)
    file = PageFile(path)
    file.open(4096)
    views = [memoryview(bytearray(6000)), memoryview(bytearray(3000))]
    assert file.read(500, views)
    assert bytes(views[1]) == b"x" * 3000
    with pytest.raises(Damaged, match="10500"):
        file.read(1500, views)
    file.close()
    file.close()
    assert not file.is_usable


def test_a_copy_that_replaced_the_file_is_the_one_that_is_read(store: LmdbBlockStore, reads: Reads) -> None:
    """Compacting opens another file in place of this one."""
    records = [put(store, 3 * PIECE_BYTES, seed) for seed in range(3)]
    assert is_whole(store, records[2])
    store.delete([records[0].key])
    store.compact()
    reads.calls.clear()
    assert all(is_whole(store, record) for record in records[1:])
    assert len(reads) >= 2


@pytest.mark.parametrize("keeps_planes", [True, False])
def test_the_store_of_a_device_that_merges_planes_gathers_what_is_large(
    tmp_path: Path, reads: Reads, *, keeps_planes: bool
) -> None:
    settings = StoreSettings(
        dir=str(tmp_path / "store"), quota=ByteSize(num_bytes=QUOTA_BYTES), codec="raw", durability="fast"
    )
    store = open_lmdb_store(settings, EventList(), FakeClock(), keeps_planes=keeps_planes)
    small, large = put(store, 1 << 19), put(store, 5 << 20, 1)
    assert is_whole(store, small)
    assert not reads.calls
    assert is_whole(store, large)
    assert len(reads) == (2 if keeps_planes else 0)
    store.close()
