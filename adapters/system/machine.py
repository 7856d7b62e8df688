"""The machine, or the container, that this process runs in: processors, open files, and memory.

A container's limit counts before the machine's: cgroup version 2, then version 1, then /proc. Held memory is anonymous
and shared memory. Pages of files, those of the store's map included, are not counted: the kernel drops them before it
refuses memory.

macOS says which share of all memory is neither wired nor compressed, and the footprint of this process, which is what
is held. Pages of this process that are not wired are in both, so that no more is available than lies beside the
footprint. Pages that other programs use are available until they are wired or compressed: the share falls then.
"""

import logging
import math
import os
import resource
import sys
from pathlib import Path

from adapters.system.mac import MacCalls, available_share, footprint_bytes
from domain.memory.ledger import MemoryReading

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
_NO_LIMIT = 2**60  # version 1 writes a huge number for "no limit"
_OPEN_FILES = (65_536, 32_768, 10_240, 4_096)

_logger = logging.getLogger("cairn")


def usable_cpus(cgroup: Path = _CGROUP) -> int:
    """The number of processors this process may use: its affinity, cut by the container's quota. At least 1."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = _cpu_quota(cgroup)
    return max(1, count if quota is None else min(count, math.ceil(quota)))


def open_file_limits() -> tuple[int, int]:
    """Soft and hard limit of open files (RLIMIT_NOFILE); -1 for no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    return -1 if soft == endless else soft, -1 if hard == endless else hard


def raise_open_files() -> None:
    """Raises the soft limit of open files of this process and of those that it starts, as far as the system allows it:
    some systems refuse a limit below the hard one that they report. Every connection takes a file."""
    soft, hard = open_file_limits()
    wanted = sorted({size if hard < 0 else min(size, hard) for size in _OPEN_FILES}, reverse=True)
    for size in wanted if soft >= 0 else ():
        if size <= soft:
            return
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (size, resource.RLIM_INFINITY if hard < 0 else hard))
        except (OSError, ValueError):
            continue
        return
    if 0 <= soft < _OPEN_FILES[-1]:
        _logger.warning("the limit of open files stays at %d, because the system refuses %s", soft, wanted[-1])


def _cpu_quota(cgroup: Path) -> float | None:
    """The processors' worth of time granted to the container; None without a limit."""
    version_2 = _text(cgroup / "cpu.max").split()
    if len(version_2) == 2 and version_2[0] != "max":
        return int(version_2[0]) / int(version_2[1])
    quota = _text(cgroup / "cpu" / "cpu.cfs_quota_us").split()
    period = _text(cgroup / "cpu" / "cpu.cfs_period_us").split()
    if quota and period and int(quota[0]) > 0:
        return int(quota[0]) / int(period[0])
    return None


class SystemMemory:
    """A MemoryProbe of the host's memory. The roots and the calls into macOS are parameters for tests."""

    def __init__(self, proc: Path = _PROC, cgroup: Path = _CGROUP, mac: MacCalls | None = None) -> None:
        self._proc, self._cgroup, self._mac = proc, cgroup, mac or MacCalls()

    def read(self) -> MemoryReading:
        if sys.platform == "darwin":
            return self._of_mac(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        machine = _sizes(self._proc / "meminfo")
        total, available = machine.get("MemTotal"), machine.get("MemAvailable")
        limits = self._containers()
        lefts = [left for _, left in limits if left is not None]
        total = min((size for size in (total, *(limit for limit, _ in limits)) if size is not None), default=None)
        available = min((size for size in (available, *lefts) if size is not None), default=None)
        return MemoryReading(total, available, self._held())

    def _of_mac(self, total: int) -> MemoryReading:
        share, held = available_share(self._mac), footprint_bytes(self._mac)
        available = None if share is None else max(0, min(int(share * total), total - (held or 0)))
        return MemoryReading(total, available, held)

    def _containers(self) -> list[tuple[int, int | None]]:
        """The limit of each of this process's cgroups, the parents included, and what is left under it: a parent that
        other processes fill may leave less than the group's own."""
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
    """Bytes by name, from lines such as `RssAnon:  12 kB`."""
    found: dict[str, int] = {}
    for line in _text(file).splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            found[name] = int(value.split()[0]) * 1024
    return found


def _reclaimable(folder: Path) -> int:
    """Bytes of file pages. Version 1 counts those of the groups below as well, as `total_...`."""
    stat = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
    return sum(int(stat.get(f"total_{name}", stat.get(name, 0))) for name in ("active_file", "inactive_file"))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
