"""A disk that keeps what was synced, and of the rest what it likes: the folders that a power cut can leave.

Contents and names are apart, as POSIX has it: syncing a file makes its content durable and not its name, syncing a
folder makes the names in it durable. What was not synced may be there in any sectors. Names that were not synced are
there up to some moment, as every journal orders them.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from random import Random
from struct import Struct

import pytest

_SOURCE = Path(__file__).with_name("io_recorder.c")
_RECORD = Struct("<4I3Q")
_CREATED, _EMPTIED, _SYNCHRONOUS = 1, 2, 4


class Op(IntEnum):
    OPEN = 1
    WRITE = 2
    TRUNCATE = 3
    SYNC = 4
    RENAME = 5
    UNLINK = 6
    MKDIR = 7
    FAILED_SYNC = 8


@dataclass(frozen=True, slots=True)
class IoRecord:
    """`inode`: of the file or folder. `offset`: of a write, or the new size. `path`, `other`: where names change."""

    op: Op
    inode: int
    offset: int
    path: str
    other: str
    data: bytes
    is_created: bool = False
    is_emptied: bool = False
    is_synchronous: bool = False


def build_recorder(folder: Path) -> Path:
    """The library to preload. Skips the test where it cannot be built."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("recording system calls needs Linux and a C compiler")
    library = folder / "io_recorder.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl", "-lpthread"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"the recorder does not compile here: {built.stderr[-300:]}")
    return library


def recording_environment(library: Path, root: Path, log: Path, fail: Path | None = None) -> Mapping[str, str]:
    """For a process whose doings below `root` go into `log`; while `fail` exists its syncs fail."""
    failing = {"CAIRN_IO_FAIL": str(fail)} if fail is not None else {}
    return {"LD_PRELOAD": str(library), "CAIRN_IO_ROOT": str(root), "CAIRN_IO_LOG": str(log), **failing}


def read_log(log: Path) -> Iterator[IoRecord]:
    content = memoryview(log.read_bytes())
    at = 0
    while at < len(content):
        op, flags, path_len, other_len, inode, offset, length = _RECORD.unpack_from(content, at)
        at += _RECORD.size
        parts: list[bytes] = []
        for size in (path_len, other_len, length if op == Op.WRITE else 0):
            parts.append(bytes(content[at : at + size]))
            at += size
        yield IoRecord(
            Op(op), inode, offset, parts[0].decode(), parts[1].decode(), parts[2],
            bool(flags & _CREATED), bool(flags & _EMPTIED), bool(flags & _SYNCHRONOUS),
        )  # fmt: skip


SECTOR_BYTES = 512

_GONE = "gone"
_Change = tuple[int, bytes | None]


@dataclass(slots=True)
class VolatileFile:
    """`content`: durable. `pending`: (offset, data) since the last sync, or (size, None) for a truncation."""

    content: bytearray = field(default_factory=bytearray)
    pending: list[_Change] = field(default_factory=list[_Change])

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.content, change)
        self.pending = []

    def fail(self) -> None:
        """A sync that failed: as Linux has it, what was written counts as written and is on the disk never."""
        self.pending = [change for change in self.pending if change[1] is None]

    def torn(self, random: Random) -> bytes:
        """What a power cut may leave of it: everything, nothing, or any sectors of what was not synced."""
        content, taste = bytearray(self.content), random.random()
        for change in self.pending:
            if taste < 0.2 or (taste < 0.9 and random.random() < 0.5):
                _apply(content, change)
            elif taste < 0.9 and change[1] is not None:
                _tear(content, change[0], change[1], random)
        return bytes(content)


class VolatileDisk:
    """Follows a log. `root`: the folder that is there at the beginning, durable."""

    def __init__(self, root: Path, inode: int) -> None:
        self._root = str(root)
        self._folders = {inode: str(root)}
        self._files: dict[int, VolatileFile] = {}
        self._names: dict[str, VolatileFile | None] = {}  # durable; None: a folder
        self._now: dict[str, VolatileFile | None] = {}
        self._pending: list[dict[str, VolatileFile | str | None]] = []  # each is one step: it happens whole

    def follow(self, record: IoRecord) -> None:
        if record.op in {Op.OPEN, Op.WRITE, Op.TRUNCATE}:
            self._follow_content(record)
        elif record.op is Op.SYNC:
            self._sync(record.inode)
        elif record.op is Op.FAILED_SYNC:
            if record.inode in self._files:
                self._files[record.inode].fail()
        else:
            self._follow_name(record)

    def _follow_content(self, record: IoRecord) -> None:
        if record.is_created:
            self._files[record.inode] = VolatileFile()
            self._name(record.path, self._files[record.inode])
        file = self._files[record.inode]
        if record.op is not Op.OPEN:
            file.pending.append((record.offset, record.data if record.op is Op.WRITE else None))
        elif record.is_emptied:
            file.pending.append((0, None))
        if record.is_synchronous:
            file.sync()

    def _follow_name(self, record: IoRecord) -> None:
        if record.op is Op.MKDIR:
            self._folders[record.inode] = record.path
            self._name(record.path, None)
            return
        gone = self._now.pop(record.path)
        change: dict[str, VolatileFile | str | None] = {record.path: _GONE}
        if record.op is Op.RENAME:
            self._now[record.other] = gone
            change = {record.other: gone, **change}
        self._pending.append(change)

    def _sync(self, inode: int) -> None:
        if inode in self._folders:
            self._sync_folder(self._folders[inode])
        else:
            self._files[inode].sync()

    def cut(self, target: Path, random: Random) -> None:
        """Write what a power cut at this moment may leave into `target`."""
        names = dict(self._names)
        for change in self._pending[: random.randint(0, len(self._pending))]:
            _rename(names, change)
        for path, file in sorted(names.items()):
            place = target / Path(path).relative_to(self._root)
            if not place.parent.is_dir():
                continue
            if file is None:
                place.mkdir(mode=0o700)
            else:
                place.write_bytes(file.torn(random))

    def _name(self, path: str, what: VolatileFile | None) -> None:
        self._now[path] = what
        self._pending.append({path: what})

    def _sync_folder(self, folder: str) -> None:
        kept: list[dict[str, VolatileFile | str | None]] = []
        for change in self._pending:
            if str(Path(next(iter(change))).parent) == folder:
                _rename(self._names, change)
            else:
                kept.append(change)
        self._pending = kept


def _rename(names: dict[str, VolatileFile | None], change: dict[str, VolatileFile | str | None]) -> None:
    for path, what in change.items():
        if isinstance(what, str):
            names.pop(path, None)
        else:
            names[path] = what


def _apply(content: bytearray, change: _Change) -> None:
    at, data = change
    if data is None:
        del content[at:]
        content.extend(bytes(at - len(content)))
        return
    content.extend(bytes(max(0, at + len(data) - len(content))))
    content[at : at + len(data)] = data


def _tear(content: bytearray, at: int, data: bytes, random: Random) -> None:
    start = at
    while start < at + len(data):
        end = min((start // SECTOR_BYTES + 1) * SECTOR_BYTES, at + len(data))
        if random.random() < 0.5:
            _apply(content, (start, data[start - at : end - at]))
        start = end
