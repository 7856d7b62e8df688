"""Records read by a separate process, because touching a page that the disk cannot read kills the process.

parent                                       child: python -m adapters.lmdb.probe PATH AFTER LOCK_S IDS
                    <── "! PIDS" ────────   about to write, if WRITE is one of IDS; these processes read the store
                                             writes and aborts; is ended by SIGALRM after LOCK_S without the lock
                                             reads the index
reads lines        <── "> NAME ID" ───────   about to read this record, the next after AFTER (and of IDS, if any)
                   <── "= BYTES PROBLEM" ─   read and checked; PROBLEM is empty where it is sound
the child died     the record of the last line cannot be read; another child goes on after it

The deadline is for macOS, where the lock of LMDB's writers is a semaphore that a process killed in a transaction leaves
taken for as long as any process has the database open.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import lmdb

from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.entries import NamespaceEntry, RecordEntry, described, parse_key, piece_key, space_of
from adapters.lmdb.environment import Environment
from adapters.lmdb.faults import DAMAGED, CorruptRecord, Damaged, FatalIndex, classify
from adapters.lmdb.notes import READ, WRITE
from adapters.lmdb.reading import verify
from application.installation import child_environment
from application.ports.block_store import Advance, OpenFailure, StoreOpenError, no_progress
from domain.prefix.record import Namespace

UNREADABLE = "cannot be read from the disk"
LOCK_S = 10.0
"""The deadline of the first write after a process ended in one; no other process writes meanwhile."""

_OF_THE_DISK = {-signal.SIGBUS, -signal.SIGSEGV}
_NO_RECORD = 0
_TRIED_BYTES = 32 << 20
"""More than one free run usually has, so that the trial reads the free list as well."""
_DAMAGED = 3
"""Exit status: the index contradicts itself."""


class Probed(NamedTuple):
    """A record that was read. `name`: its key in the database. `problem`: empty when it is sound."""

    name: bytes
    id: int
    num_bytes: int
    problem: str


class _Undone(Exception):
    """Aborts a transaction."""


def unreadable_of(path: Path, ids: Sequence[int]) -> list[int]:
    """Returns those of the records that the disk cannot read. With WRITE among `ids` the child tries to write as well.
    Raises FatalIndex when that or reading the index ends the child, Damaged when the index contradicts itself, and
    StoreOpenError when the lock of the writer does not come free."""
    if not StoreDirectory(path).data.exists():
        return []
    return [one.id for one in _probed(path, ids or [_NO_RECORD]) if one.problem == UNREADABLE]


def verify_payloads(path: Path, advance: Advance = no_progress) -> list[str]:
    """Checks every payload of a store; returns one line for each problem. `advance` is called with each record's bytes.
    Raises Damaged when the index cannot be read."""
    problems: list[str] = []
    for one in _probed(path, ()):
        advance(one.num_bytes)
        if one.problem:
            problems.append(f"{described(one.name)} {one.problem}")
    return problems


def _probed(path: Path, ids: Sequence[int]) -> Iterator[Probed]:
    after, is_done = b"", False
    while not is_done:
        arguments = [str(path), after.hex(), str(LOCK_S), ",".join(map(str, ids))]
        command = [sys.executable, "-P", "-m", "adapters.lmdb.probe", *arguments]
        name, record_id, readers = b"", 0, ""
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment()) as child:
            assert child.stdout is not None
            for line in child.stdout:
                if line.startswith("!"):
                    readers = line[1:].strip() or "unknown"
                    continue
                kind, first, rest = line.rstrip("\n").split(" ", 2)
                if kind == ">":
                    name, record_id = bytes.fromhex(first), int(rest)
                    continue
                yield Probed(name, record_id, int(first), rest)
                after, name = name, b""
        is_done = child.returncode == 0
        if child.returncode == -signal.SIGALRM:
            message = f"{path} cannot be written: a process that was killed left it locked; stop what has it open"
            raise StoreOpenError(OpenFailure.BUSY, f"{message} (pid {readers}), and it is opened again")
        if child.returncode == _DAMAGED:
            raise Damaged("its index contradicts itself")
        if not is_done and child.returncode not in _OF_THE_DISK:
            raise OSError(f"the process that reads {path} ended with status {child.returncode}")
        if not is_done and not name:
            raise FatalIndex("its index cannot be read from the disk")
        if not is_done:
            yield Probed(name, record_id, 0, UNREADABLE)
            after = name


def main(path: Path, after: bytes, lock_s: float, ids: Sequence[int]) -> None:
    """Reads records and reports each on stdout: the main function of the child."""
    if WRITE in ids:
        _try_writing(path, lock_s)
    environment = Environment(StoreDirectory(path), map_bytes=0, read_only=True)
    environment.open()
    trees = environment.trees
    with environment.viewing() as txn:
        rows = [(bytes(key), bytes(value)) for key, value in txn.cursor(trees.ns)]
        spaces = {NamespaceEntry.unpack(key, value).space: Namespace(key) for key, value in rows}
        for tree in (trees.kid, trees.lru):
            for _ in txn.cursor(tree).iternext(values=False):
                pass
        cursor = txn.cursor(trees.rec)
        more = cursor.set_range(after + b"\0") if after else cursor.first()
        while more:
            name = bytes(cursor.key())
            row = RecordEntry.unpack(name, bytes(cursor.value()))
            more = cursor.next()
            if ids and row.id not in ids:
                continue
            _say(f"> {name.hex()} {row.id}")
            problem = ""
            try:
                verify(environment, txn, parse_key(spaces[space_of(name)], name), row)
            except (CorruptRecord, KeyError) as failure:
                problem = f"is damaged: {failure}"
            _say(f"= {row.charged_bytes} {problem}")


def _try_writing(path: Path, lock_s: float) -> None:
    """Touches the pages that the next transaction will: the end of the pieces, and the free list."""
    reader, environment = (Environment(StoreDirectory(path), map_bytes=0, read_only=only) for only in (True, False))
    reader.open()
    _say(f"! {' '.join(map(str, reader.reader_pids()))}")
    reader.close()
    signal.setitimer(signal.ITIMER_REAL, lock_s)  # its default action ends a process that waits inside a library
    environment.open()
    with suppress(lmdb.MapFullError, _Undone), environment.writing() as txn:
        signal.setitimer(signal.ITIMER_REAL, 0)
        txn.put(piece_key(READ, 0), bytes(_TRIED_BYTES), db=environment.trees.dat)
        raise _Undone
    environment.close()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        path, after, lock_s, ids = sys.argv[1:]
        main(Path(path), bytes.fromhex(after), float(lock_s), [int(text) for text in ids.split(",") if text])
    except (Damaged, lmdb.Error, OSError) as failure:
        sys.stderr.write(f"cairn: {failure}\n")
        sys.exit(_DAMAGED if classify(failure) == DAMAGED else 1)
