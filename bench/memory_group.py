"""A control group of the system's that holds a process to so many bytes, and kills it where it cannot: Linux, cgroup v1
or v2, and only for who may make groups. Gone when the measurement ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from domain.byte_size import ByteSize

ROOT = Path("/sys/fs/cgroup")


class MemoryGroup:
    """`enter` is called by the process that is to be held, before it becomes what it is to be."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._is_v2 = (folder / "memory.max").exists()
        (folder / ("memory.max" if self._is_v2 else "memory.limit_in_bytes")).write_text(str(limit_bytes))

    def enter(self) -> None:
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def told(self) -> dict[str, int]:
        """What the system counted: the most that was held, with pages of files, and how often the limit was met."""
        if self._is_v2:
            events = dict(line.split() for line in (self._folder / "memory.events").read_text().splitlines())
            return {
                "peak_bytes": self._number("memory.peak"),
                "met": int(events["max"]),
                "killed": int(events["oom_kill"]),
            }
        killed = dict(line.split() for line in (self._folder / "memory.oom_control").read_text().splitlines())
        return {
            "peak_bytes": self._number("memory.max_usage_in_bytes"),
            "met": self._number("memory.failcnt"),
            "killed": int(killed.get("oom_kill", 0)),
        }

    def _number(self, name: str) -> int:
        return int((self._folder / name).read_text())


@contextmanager
def memory_group(size: str | None) -> Iterator[MemoryGroup | None]:
    """None where none is wanted. Raises OSError where none can be made."""
    if size is None:
        yield None
        return
    limit = ByteSize.parse(size).num_bytes
    if limit is None:
        raise ValueError("a group is held to bytes, not to a share")
    parent = ROOT / "memory" if (ROOT / "memory").is_dir() else ROOT
    folder = parent / f"cairn-bench-{os.getpid()}"
    folder.mkdir()
    try:
        yield MemoryGroup(folder, limit)
    finally:
        folder.rmdir()
