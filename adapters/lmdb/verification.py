"""Verify, then write: before the first write to a file that was there already, its structure is walked.

LMDB edits pages without looking twice, so one flipped bit can make a write overrun memory. A large file is walked by
a process of its own, because the walk is Python and would take the interpreter from everybody else.
"""

import subprocess
import sys
from pathlib import Path

from adapters.lmdb import structure
from adapters.lmdb.faults import Damaged

_SMALL_BYTES = 8 << 20
_TIMEOUT_S = 600.0


def verify_structure(data: Path, page_bytes: int) -> None:
    """Raises Damaged, naming the first problem. The file must not be written to meanwhile."""
    is_small = data.stat().st_size <= _SMALL_BYTES
    problem = structure.find_problem(str(data), page_bytes) if is_small else _elsewhere(data, page_bytes)
    if problem:
        raise Damaged(f"the structure of the database is wrong: {problem}")


def _elsewhere(data: Path, page_bytes: int) -> str | None:
    command = [sys.executable, "-I", structure.__file__, str(data), str(page_bytes)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return structure.find_problem(str(data), page_bytes)
    return done.stdout or None


__all__ = ("verify_structure",)
