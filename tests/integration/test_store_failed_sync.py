"""A disk that failed to sync is not believed later, when it calls written what it dropped."""

from pathlib import Path
from shutil import copytree

import pytest

from adapters.fake.clock import FakeClock
from adapters.lmdb import directory
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.lmdb.faults import Unsynced
from adapters.lmdb.last_point import LastPoint
from adapters.zstd.codec import ZstdStateCodec
from application.events import StoreFault
from application.ports.block_store import StoreOpenError
from application.ports.record_writer import PutOutcome
from tests.support.store_records import EventList, chain, keys_of, namespace_of, same

INFO = namespace_of("one")


def open_store(path: Path, events: EventList | None = None) -> LmdbBlockStore:
    """One that syncs when it is told to, and never rests."""
    options = LmdbOptions(4 << 20, durability="fast", pause_s=0.0)
    store = LmdbBlockStore(path, options, ZstdStateCodec(), events or EventList(), FakeClock())
    assert store._background is not None
    store._background.close()
    return store


def faults(events: EventList) -> list[str]:
    return [event.kind for event in events.of(StoreFault) if isinstance(event, StoreFault)]


def test_a_sync_that_failed_is_remembered_although_it_cannot_be_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that became read-only with the failure, and was repaired."""
    before, lost = (chain(INFO, 3, seed=seed) for seed in range(2))
    store = open_store(tmp_path / "store", events := EventList())
    assert store.put(before) is PutOutcome.STORED
    store.flush()
    assert store.put(lost) is PutOutcome.STORED

    def failing(_point: LastPoint, _sync: object) -> None:
        raise Unsynced(5, "Input/output error")

    def refused(_path: Path, _flags: int) -> int:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as broken:
        broken.setattr(LastPoint, "_sync", failing)
        broken.setattr(directory, "open_private", refused)
        store.flush()
    store.flush()
    assert faults(events) == ["io_error", "rolled_back"]
    assert all(map(same, store.get(keys_of(before)), before))
    assert store.get(keys_of(lost)) == [None] * 3
    assert store.put(lost) is PutOutcome.STORED
    store.close()
    again = open_store(tmp_path / "store", events)
    assert faults(events) == ["io_error", "rolled_back"], "once"
    assert all(map(same, again.get(keys_of(lost)), lost))
    again.close()


def test_a_sync_that_failed_at_opening_is_not_forgotten_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed server left unsynced may be what the disk drops: the next sync would call it written."""
    before, lost = (chain(INFO, 3, seed=seed) for seed in range(2))
    store = open_store(tmp_path / "store")
    assert store.put(before) is PutOutcome.STORED
    store.flush()
    assert store.put(lost) is PutOutcome.STORED
    killed = copytree(tmp_path / "store", tmp_path / "killed")
    whole = copytree(tmp_path / "store", tmp_path / "whole")
    store.close()

    sync = LastPoint._sync

    def fail() -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(LastPoint, "_sync", lambda point, _sync: sync(point, fail))
        with pytest.raises(StoreOpenError, match="Input/output error"):
            open_store(killed)
    for path, found in ((killed, [None] * 3), (whole, lost)):
        again = open_store(path, events := EventList())
        assert faults(events) == (["rolled_back"] if path == killed else [])
        assert all(map(same, again.get(keys_of(before)), before))
        assert all(one is there or same(one, there) for one, there in zip(again.get(keys_of(lost)), found, strict=True))
        again.close()
