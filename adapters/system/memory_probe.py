"""The host's memory: how much of it this process may use, how much of it is free, and how much the process holds.

Held is anonymous and shared memory. Pages of files, the store's map among them, are not counted: the kernel drops them
before it refuses memory, however lately they were used.

A container's limit counts before the machine's memory: cgroup version 2, then version 1, then /proc/meminfo; on macOS
sysconf, which knows the total only.
"""

import os
import sys
from pathlib import Path

from domain.memory.ledger import MemoryReading

_NO_LIMIT = 2**60  # version 1 writes a huge number for "no limit"


class SystemMemory:
    """A MemoryProbe. The roots are parameters for tests."""

    def __init__(self, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroup = cgroup

    def read(self) -> MemoryReading:
        if sys.platform == "darwin":
            # The peak could be read, and is not what is held; anything else takes calls into Mach.
            return MemoryReading(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        machine = _sizes(self._proc / "meminfo")
        total, available = machine.get("MemTotal"), machine.get("MemAvailable")
        limits = self._containers()
        lefts = [left for _, left in limits if left is not None]
        total = min((size for size in (total, *(limit for limit, _ in limits)) if size is not None), default=None)
        available = min((size for size in (available, *lefts) if size is not None), default=None)
        return MemoryReading(total, available, self._held())

    def _containers(self) -> list[tuple[int, int | None]]:
        """Every limit on the way up this process's cgroups, and what is left under it: a wide one that others fill may
        leave less than its own."""
        found: list[tuple[int, int | None]] = []
        for folder, limit_name, usage_name in self._cgroup_folders():
            limit = _text(folder / limit_name).strip()
            if limit.isdigit() and 0 < int(limit) < _NO_LIMIT:
                usage = _text(folder / usage_name).strip()
                used = max(0, int(usage) - _reclaimable(folder)) if usage.isdigit() else None
                found.append((int(limit), None if used is None else max(0, int(limit) - used)))
        return found

    def _cgroup_folders(self) -> list[tuple[Path, str, str]]:
        folders: list[tuple[Path, str, str]] = []
        for line in _text(self._proc / "self" / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                root, names = self._cgroup, ("memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                root, names = self._cgroup / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
            else:
                continue
            parts = [part for part in path.split("/") if part not in ("", "..")]
            folders += [(root.joinpath(*parts[:depth]), *names) for depth in range(len(parts) + 1)]
        return folders

    def _held(self) -> int | None:
        found = _sizes(self._proc / "self" / "status")
        return found["RssAnon"] + found.get("RssShmem", 0) if "RssAnon" in found else None


def _sizes(file: Path) -> dict[str, int]:
    """Bytes by name, of lines like `RssAnon:  12 kB`."""
    found: dict[str, int] = {}
    for line in _text(file).splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            found[name] = int(value.split()[0]) * 1024
    return found


def _reclaimable(folder: Path) -> int:
    """Pages of files. Version 1 counts a group's own and, as `total_...`, those of the groups below it as well."""
    stat = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
    return sum(int(stat.get(f"total_{name}", stat.get(name, 0))) for name in ("active_file", "inactive_file"))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
