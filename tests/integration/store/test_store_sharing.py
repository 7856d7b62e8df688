"""Processes that share a store: readers beside a writer that grows or changes its file, and equal process ids."""

import os
import sys
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace

import pytest

from adapters.lmdb import environment, probe
from adapters.lmdb.directory import StoreDirectory
from application.ports.block_store import OpenFailure, PutOutcome, StoreOpenError
from tests.support.patience import PATIENCE_S
from tests.support.processes.processes import finish, start
from tests.support.stores.lmdb_store import open_store
from tests.support.stores.store_records import chain, keys_of, namespace_of, same

INFO = namespace_of("one")
SMALL_BYTES = 2 << 20


def expect(process: Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == line + "\n", process.communicate()


def tell(process: Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


PRELUDE = """
import fcntl, os, sys
from time import sleep
from application.events import StoreFault
from tests.integration.store.test_store_sharing import *
from tests.support.stores.store_records import chain, keys_of, same
from tests.support.telemetry.recording import RecordingEvents
path = Path(sys.argv[1])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_file_that_grows_while_it_is_inspected_is_not_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_store(path)
    assert writer.put(chain(INFO, 1)) is PutOutcome.STORED
    pread, rounds = os.pread, iter(range(1, 5))

    def grow_first(handle: int, length: int, offset: int) -> bytes:
        """A commit between any two of the reader's looks at the file."""
        for seed in [next(rounds, 0)]:
            assert not seed or writer.put(chain(INFO, 4, seed=seed, size_bytes=200_000)) is PutOutcome.STORED
        return pread(handle, length, offset)

    reader = StoreDirectory(path)
    with monkeypatch.context() as patch:
        # The header's own `os`, not everybody's: other threads of this process may read a file meanwhile.
        patch.setattr(environment, "os", SimpleNamespace(**{**vars(os), "pread": grow_first}))
        for _ in range(4):
            environment.inspect(reader.data, may_fill=False)
    writer.close()


def test_the_file_is_as_long_as_its_header_says_after_each_commit(path: Path) -> None:
    writer, reader = open_store(path, quota_bytes=SMALL_BYTES), StoreDirectory(path)
    for seed in range(30):
        assert writer.put(chain(INFO, 1, seed=seed, size_bytes=150_000)) is PutOutcome.STORED
        environment.inspect(reader.data, may_fill=False)
    writer.close()


def test_a_store_without_a_database_yet_is_not_damaged(path: Path) -> None:
    open_store(path).close()
    for content in (b"", None):
        (path / "data.mdb").unlink()
        if content is not None:
            (path / "data.mdb").write_bytes(content)
        with pytest.raises(StoreOpenError, match="no database") as refused:
            open_store(path, read_only=True)
        assert refused.value.failure is OpenFailure.VOLUME
        open_store(path).close()


HOLDER = """
store = open_store(path)
assert store.put(chain(INFO, 3)) is PutOutcome.STORED
print("open", flush=True)
# What a process of this id does when it begins to read, whichever pid namespace it is in.
pid = int(sys.stdin.readline())
handle = os.open(path / "lock.mdb", os.O_RDWR)
fcntl.lockf(handle, fcntl.LOCK_EX, 1, pid)
print("held", flush=True)
sys.stdin.readline()
sleep(0.3)  # the reader has been told to go on just before
fcntl.lockf(handle, fcntl.LOCK_UN, 1, pid)
print("free", flush=True)
sys.stdin.readline()
store.close()
"""
READER = """
print(os.getpid(), flush=True)
sys.stdin.readline()
try:
    reader = open_store(path, read_only=True)
    blocks = chain(INFO, 3)
    print("found" if all(map(same, reader.get(keys_of(blocks)), blocks)) else "missing", flush=True)
    reader.close()
except StoreOpenError as failure:
    print(failure.failure.value, failure, flush=True)
"""


@pytest.mark.parametrize("stays", [True, False], ids=["for long", "for a moment"])
def test_an_equal_process_id_in_another_container_is_named_or_waited_for(path: Path, stays: bool) -> None:
    holder = start("-c", PRELUDE + HOLDER, str(path), stdin=True)
    expect(holder, "open")
    reader = start("-c", PRELUDE + READER, str(path), stdin=True)
    assert reader.stdout is not None
    tell(holder, reader.stdout.readline().strip())
    expect(holder, "held")
    tell(reader, "go")
    if not stays:
        tell(holder, "let go")
    answer = reader.stdout.readline()
    if stays:
        assert answer.startswith(f"busy {path}: a process with the same process id ({reader.pid})")
        assert "pid namespace" in answer
        tell(holder, "let go")
    else:
        assert answer == "found\n"
    finish(reader, 60)
    expect(holder, "free")
    tell(holder, "end")
    finish(holder, 60)


def test_a_refused_writers_error_names_the_holder(path: Path) -> None:
    writer = open_store(path)
    with pytest.raises(StoreOpenError) as refused:
        open_store(path)
    assert refused.value.failure is OpenFailure.BUSY
    namespace = os.readlink("/proc/self/ns/pid") if sys.platform == "linux" else ""
    assert f"pid {os.getpid()} on {os.uname().nodename} {namespace}".rstrip() in str(refused.value)
    writer.close()
    assert (path / "writer.lock").stat().st_size == 256


def test_a_reader_that_looks_for_a_writer_blocks_none(path: Path) -> None:
    open_store(path).close()
    reader = StoreDirectory(path)
    assert not reader.is_written_elsewhere()
    writer = open_store(path)
    assert reader.is_written_elsewhere()
    writer.close()
    assert not reader.is_written_elsewhere()


KILLED = """
store = open_store(path)
store.put(chain(INFO, 3))
held = store._environment.writing()
held.__enter__()
os.kill(os.getpid(), 9)
"""
LOCKED = """
held = environment.Environment(StoreDirectory(path), map_bytes=1 << 25, read_only=False)
held.open()
# Such a lock comes free with its process here; a semaphore of macOS does not.
with held.writing():
    print("locked", flush=True)
    sys.stdin.readline()
held.close()
"""


def test_a_lock_that_a_killed_writer_left_is_reported_with_those_who_keep_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "LOCK_S", 0.2)
    start("-c", PRELUDE + KILLED, str(path)).communicate(timeout=PATIENCE_S)
    holder = start("-c", PRELUDE + LOCKED, str(path), stdin=True)
    expect(holder, "locked")
    for _ in range(2):
        with pytest.raises(StoreOpenError, match=rf"stop what has it open \(pid {holder.pid}\)") as refused:
            open_store(path)
        assert refused.value.failure is OpenFailure.BUSY, "it is opened later"
    tell(holder, "end")
    finish(holder, PATIENCE_S)
    store = open_store(path)
    blocks = chain(INFO, 3)
    assert all(map(same, store.get(keys_of(blocks)), blocks))
    store.close()
