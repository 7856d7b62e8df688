"""What a process did to the files of a folder, recorded by `io_recorder.c` in the order in which it happened."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
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
