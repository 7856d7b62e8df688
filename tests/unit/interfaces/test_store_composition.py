"""The store that the settings ask for: where it lies, how large it may become, and what happens when it cannot open."""

from pathlib import Path
from shutil import disk_usage

import pytest

from adapters.decorators.awaited_store import MAX_RETRY_S
from adapters.fake.environment import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore
from adapters.memory.block_store import MemoryBlockStore
from adapters.system.machine import SystemMemory
from application.events import StoreFault, StoreOpened
from application.ports.block_store import PutOutcome, StoreUsage
from application.settings import StoreSettings
from domain.byte_size import ByteSize
from domain.memory.ledger import MemoryReading
from interfaces.composition.store import build_store, open_lmdb_store, quota_bytes, store_dir
from tests.support.stores.store_records import chain, keys_of, namespace_of
from tests.support.telemetry.recording import RecordingEvents

QUOTA = ByteSize(num_bytes=8 << 20)


def test_the_default_folder_is_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store_dir(StoreSettings()) == tmp_path / "cairn" / "store"
    assert store_dir(StoreSettings(dir="~/somewhere")) == Path.home() / "somewhere"


def test_the_default_quota_is_a_share_of_what_is_free(tmp_path: Path) -> None:
    free = disk_usage(tmp_path).free
    assert 0 < quota_bytes(StoreSettings(), tmp_path / "not" / "there") <= free // 4
    half = quota_bytes(StoreSettings(quota=ByteSize(share=0.5)), tmp_path)
    assert abs(half - disk_usage(tmp_path).free // 2) < 1 << 30
    assert quota_bytes(StoreSettings(quota=QUOTA), tmp_path) == 8 << 20


def test_each_kind_builds_its_store(tmp_path: Path) -> None:
    events = RecordingEvents()
    assert build_store(StoreSettings(kind="off"), events, FakeClock()) is None
    assert isinstance(build_store(StoreSettings(kind="memory", quota=QUOTA), events, FakeClock()), MemoryBlockStore)
    settings = StoreSettings(dir=str(tmp_path / "store"), quota=QUOTA)
    store = build_store(settings, events, FakeClock())
    assert isinstance(store, LmdbBlockStore)
    assert store.put(chain(namespace_of("one"), 2)) is PutOutcome.STORED
    store.close()
    assert events.of(StoreFault) == []


def test_a_server_goes_on_without_a_store_it_cannot_open(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "store" / "letter.txt").write_text("mine")
    settings = StoreSettings(dir=str(tmp_path / "store"), quota=QUOTA)
    events = RecordingEvents()
    assert build_store(settings, events, FakeClock()) is None
    (fault,) = events.of(StoreFault)
    assert isinstance(fault, StoreFault)
    assert fault.kind == "open_foreign"
    assert str(tmp_path) in fault.message


def test_a_store_that_another_has_is_tried_again_until_it_is_ours(tmp_path: Path) -> None:
    settings = StoreSettings(dir=str(tmp_path / "store"), quota=QUOTA)
    first, clock, events = open_lmdb_store(settings, RecordingEvents(), FakeClock()), FakeClock(), RecordingEvents()
    store, one = build_store(settings, events, clock), namespace_of("one")
    assert store is not None
    store.open_namespace(one)
    records = chain(one, 2)
    for _ in range(4):
        clock.advance(MAX_RETRY_S)
        assert store.usage() == StoreUsage(quota_bytes=0, stored_bytes=0, namespaces=(), faults={"open_busy": 1})
        assert store.put(records) is PutOutcome.UNAVAILABLE
        assert store.prepare(records)() is PutOutcome.UNAVAILABLE
        assert store.get(keys_of(records)) == [None, None]
        assert store.erase().problem
    first.close()
    assert store.usage().quota_bytes == 0  # not at every call
    clock.advance(MAX_RETRY_S)
    assert store.usage().quota_bytes == 8 << 20
    assert store.prepare(records)() is PutOutcome.STORED
    assert [space.info.model for space in store.usage().namespaces] == ["one"]
    assert [(event.kind) for event in events.of(StoreFault)] == ["open_busy"]
    assert events.of(StoreOpened) == [StoreOpened(int(5 * MAX_RETRY_S * 1e9), clock.now_ns())]
    store.close()


def test_a_store_that_was_closed_is_not_tried_again(tmp_path: Path) -> None:
    settings = StoreSettings(dir=str(tmp_path / "store"), quota=QUOTA)
    first, clock = open_lmdb_store(settings, RecordingEvents(), FakeClock()), FakeClock()
    store = build_store(settings, RecordingEvents(), clock)
    assert store is not None
    store.close()
    first.close()
    clock.advance(MAX_RETRY_S)
    assert store.usage().quota_bytes == 0
    open_lmdb_store(settings, RecordingEvents(), FakeClock()).close()


def test_a_store_is_left_out_of_backups_and_is_a_store_all_the_same(tmp_path: Path) -> None:
    settings = StoreSettings(dir=str(tmp_path / "store"), quota=QUOTA)
    for _ in range(2):
        open_lmdb_store(settings, RecordingEvents(), FakeClock()).close()
        assert (tmp_path / "store" / "CACHEDIR.TAG").is_file()
        (tmp_path / "store" / "format").unlink()  # as if the start had been cut off before it was written
        for file in (tmp_path / "store").glob("*.mdb"):
            file.unlink()


def test_a_memory_stores_share_is_a_share_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemMemory, "read", lambda _self: MemoryReading(1000, 900, 100))
    store = build_store(StoreSettings(kind="memory", quota=ByteSize(share=0.25)), RecordingEvents(), FakeClock())
    assert store is not None
    assert store.usage().quota_bytes == 250
