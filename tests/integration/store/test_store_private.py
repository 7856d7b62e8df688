"""Private files: only the owner can read a store, under any umask, and links and files of others are refused."""

import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE

import pytest

from adapters.fake.environment import FakeClock
from application.events import StoreFault
from application.ports.block_store import OpenFailure, PutOutcome, StoreOpenError
from application.settings import StoreSettings
from interfaces.composition.store import open_lmdb_store, quota_bytes
from tests.support.stores.lmdb_store import open_store
from tests.support.stores.store_records import chain, keys_of, namespace_of, same
from tests.support.telemetry.recording import RecordingEvents

INFO = namespace_of("one")
FILES = ("format", "data.mdb", "lock.mdb", "writer.lock", "quota", "notes")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")


@pytest.fixture(autouse=True, params=[0o000, 0o077], ids=["umask 000", "umask 077"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def faults(events: RecordingEvents) -> list[tuple[str, str]]:
    return [(event.kind, event.message) for event in events.of(StoreFault)]


def modes(path: Path) -> dict[str, int]:
    return {file.name: S_IMODE(file.lstat().st_mode) for file in [path, *path.rglob("*")]}


def refused(path: Path, **options: object) -> str:
    with pytest.raises(StoreOpenError) as refusal:
        open_store(path, **options)
    assert refusal.value.failure is OpenFailure.VOLUME
    return str(refusal.value)


def test_every_file_of_a_store_is_its_owners(tmp_path: Path) -> None:
    files = {*FILES, "CACHEDIR.TAG"}
    path = tmp_path / "new" / "store"
    settings = StoreSettings(dir=str(path))
    open_lmdb_store(settings, RecordingEvents(), FakeClock()).close()
    (path / "data.mdb").write_bytes(b"x" * 10_000)
    store = open_lmdb_store(settings, RecordingEvents(), FakeClock())
    assert store.put(chain(INFO, 2)) is PutOutcome.STORED
    store.flush()
    assert S_IMODE(path.parent.stat().st_mode) == 0o700
    assert set(modes(path)) == {"store", *files}
    assert modes(path) == {"store": 0o700} | dict.fromkeys(files, 0o600)
    store.compact()
    assert modes(path) == {"store": 0o700} | dict.fromkeys(files, 0o600)
    store.close()
    assert modes(path) == {"store": 0o700} | dict.fromkeys(files, 0o600)


def test_an_open_folder_of_ours_is_closed_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, events, blocks = tmp_path / "store", RecordingEvents(), chain(INFO, 2)
    store = open_store(path)
    assert store.put(blocks) is PutOutcome.STORED
    store.close()
    path.chmod(0o777)
    for file in path.iterdir():
        file.chmod(0o644)
    store = open_store(path, events)
    assert faults(events) == []
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert all(name in record.getMessage() for name in (str(path), "data.mdb", "format"))
    assert set(modes(path).values()) == {0o700, 0o600}
    assert all(map(same, store.get(keys_of(blocks)), blocks))
    store.close()
    open_store(path, events).close()
    assert len(caplog.records) == 1


def test_an_empty_folder_is_made_a_store_and_one_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    open_store(tmp_path / "empty").close()
    assert modes(tmp_path / "empty")["empty"] == 0o700
    used = tmp_path / "used"
    used.mkdir()
    used.chmod(0o755)
    (used / "letter.txt").write_text("dear")
    with pytest.raises(StoreOpenError) as refusal:
        open_lmdb_store(StoreSettings(dir=str(used)), RecordingEvents(), FakeClock())
    assert refusal.value.failure is OpenFailure.FOREIGN
    assert [file.name for file in used.iterdir()] == ["letter.txt"]
    assert modes(used)["used"] == 0o755


@pytest.mark.parametrize("name", ["format", "data.mdb", "lock.mdb", "writer.lock", "notes", "quota"])
def test_a_link_in_a_store_is_refused_and_not_followed(tmp_path: Path, name: str) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    open_store(path).close()
    file = path / name
    target.write_bytes(file.read_bytes() if file.exists() else b"precious")
    before = target.read_bytes(), target.stat().st_mode
    file.unlink(missing_ok=True)
    file.symlink_to(target)
    for read_only in (False, True):
        assert name in refused(path, read_only=read_only)
    assert (target.read_bytes(), target.stat().st_mode) == before


def test_a_second_name_of_another_file_is_not_written_to(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    open_store(path).close()
    target.write_bytes(b"precious")
    (path / "writer.lock").unlink()
    (path / "writer.lock").hardlink_to(target)
    assert "writer.lock" in refused(path)
    assert target.read_bytes() == b"precious"


def test_a_pipe_in_place_of_a_file_blocks_no_call(tmp_path: Path) -> None:
    path = tmp_path / "store"
    open_store(path).close()
    (path / "format").unlink()
    os.mkfifo(path / "format")
    assert "format" in refused(path)
    assert "format" in refused(path, read_only=True)
    os.mkfifo(path / "quota")
    settings = StoreSettings(dir=str(path))
    assert quota_bytes(settings, path) > 0
    with pytest.raises(StoreOpenError, match="not a regular file"):
        open_lmdb_store(settings, RecordingEvents(), FakeClock())


@needs_root
@pytest.mark.parametrize("name", ["", "format", "data.mdb", "lock.mdb", "writer.lock"])
def test_a_file_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "store"
    open_store(path).close()
    os.chown(path / name, 12345, -1)
    for read_only in (False, True):
        message = refused(path, read_only=read_only)
        assert "uid 12345" in message
        assert str(path / name) in message


@needs_root
def test_a_link_to_the_folder_is_followed_when_its_owner_made_it(tmp_path: Path) -> None:
    (tmp_path / "large-disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "large-disk")
    open_store(tmp_path / "store").close()
    assert modes(tmp_path / "large-disk")["large-disk"] == 0o700
    os.lchown(tmp_path / "store", 12345, -1)
    assert "another user" in refused(tmp_path / "store")
