"""How much memory this process may use, how much of it is free, and how much it holds.

A container's limit counts before the machine's memory: cgroup version 2, then version 1, then /proc/meminfo; on macOS
sysctl. Reading takes well under a millisecond on Linux. What cannot be read is reported as 0, never guessed.
"""

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 2**60  # version 1 writes a huge number for "no limit"


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Bytes. `total`: what this process may use; `available`: free or reclaimable of that; `resident`: held by it."""

    total_bytes: int
    available_bytes: int
    resident_bytes: int


class SystemMemory:
    """Any thread. The roots are parameters for tests."""

    def __init__(self, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroup = cgroup

    def read(self) -> MemoryReading:
        if sys.platform == "darwin":
            return _read_macos()
        machine = self._meminfo()
        total, available = machine.get("MemTotal", 0), machine.get("MemAvailable", 0)
        limit, used = self._container()
        if limit and (not total or limit < total):
            total, available = limit, min(available or limit, max(0, limit - used))
        return MemoryReading(total, available, self._resident())

    def _meminfo(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for line in _text(self._proc / "meminfo").splitlines():
            name, _, value = line.partition(":")
            if value.endswith("kB"):
                found[name] = int(value.split()[0]) * 1024
        return found

    def _container(self) -> tuple[int, int]:
        """The tightest limit on the way up this process's cgroups, and the bytes used under it that must stay."""
        tightest, used = 0, 0
        for folder, limit_name, usage_name in self._cgroup_folders():
            limit = _text(folder / limit_name).strip()
            if limit.isdigit() and 0 < int(limit) < _NO_LIMIT and (not tightest or int(limit) < tightest):
                tightest = int(limit)
                usage = _text(folder / usage_name).strip()
                used = max(0, int(usage or 0) - _reclaimable(folder))
        return tightest, used

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

    def _resident(self) -> int:
        fields = _text(self._proc / "self" / "statm").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _reclaimable(folder: Path) -> int:
    """File pages that nobody used lately: the kernel drops them before it refuses memory."""
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _read_macos() -> MemoryReading:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # The peak, since the present value needs a Mach call; what is available is not read without one either.
    return MemoryReading(total, 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


__all__ = ("MemoryReading", "SystemMemory")
