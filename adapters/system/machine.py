"""Facts of the machine that decide limits: processors this process may use, its memory, its open files."""

import math
import os
import resource
import sys
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cpus(cgroup: Path = _CGROUP) -> int:
    """Processors this process may use: its affinity, cut by the container's quota. At least 1."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = _cpu_quota(cgroup)
    return max(1, count if quota is None else min(count, math.ceil(quota)))


def open_file_limits() -> tuple[int, int]:
    """Soft and hard limit of open files (RLIMIT_NOFILE); -1 for no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    return -1 if soft == endless else soft, -1 if hard == endless else hard


def _cpu_quota(cgroup: Path) -> float | None:
    """CPUs' worth of time granted to the container, None without a limit."""
    version_2 = _words(cgroup / "cpu.max")
    if len(version_2) == 2 and version_2[0] != "max":
        return int(version_2[0]) / int(version_2[1])
    quota = _words(cgroup / "cpu" / "cpu.cfs_quota_us")
    period = _words(cgroup / "cpu" / "cpu.cfs_period_us")
    if quota and period and int(quota[0]) > 0:
        return int(quota[0]) / int(period[0])
    return None


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
