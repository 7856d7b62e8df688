"""Who started whom, where there is a /proc; and whose orphans come to whom."""

import ctypes
import sys
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def children(pid: int) -> list[int]:
    """None where there is no /proc, or no such process any more."""
    try:
        lists = [task.joinpath("children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
    return [int(child) for found in lists for child in found]


def descendants(pid: int) -> list[int]:
    return [found for child in children(pid) for found in (child, *descendants(child))]


def adopt_orphans() -> bool:
    """What processes below this one leave behind becomes its own child from now on, in whatever session it is; False
    where the system does not do that (other than Linux)."""
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


__all__ = ("adopt_orphans", "children", "descendants")
