"""Verify, then trust: a file that was there already is walked before it is written to or a large value is read.

LMDB edits pages without looking twice, so one flipped bit can make a write overrun memory, and a value that claims to
be longer than the file kills the process that reads it. A large file is walked by a process of its own, because the
walk is Python and would take the interpreter from everybody else; it starts when the file is opened.
"""

import subprocess
import sys
from pathlib import Path
from threading import Lock, Timer

from adapters.lmdb import structure
from adapters.lmdb.faults import Damaged

_SMALL_BYTES = 8 << 20
_TIMEOUT_S = 600.0
_START_DELAY_S = 0.1


class Verification:
    """The walk over one opened file; `wait` returns at once when it is done."""

    def __init__(self, data: Path, page_bytes: int, *, is_needed: bool) -> None:
        self._data = data
        self._page_bytes = page_bytes
        self._lock = Lock()
        self._is_done = not is_needed
        self._failure: Damaged | None = None

    def start(self) -> None:
        """Small files are walked here and now, large ones in the background."""
        if self._is_done:
            return
        if self._data.stat().st_size <= _SMALL_BYTES:
            self._run()
        else:
            # A moment later, so that starting a process does not hold up whoever is opening.
            timer = Timer(_START_DELAY_S, self._run)
            timer.daemon = True
            timer.start()

    def wait(self) -> None:
        """Raises Damaged. Nobody may write to the file before this has returned."""
        if not self._is_done:
            self._run()
        if self._failure is not None:
            raise Damaged(str(self._failure))

    def _run(self) -> None:
        with self._lock:
            if self._is_done:
                return
            try:
                verify_structure(self._data, self._page_bytes)
            except Damaged as failure:
                self._failure = failure
            except OSError as failure:
                self._failure = Damaged(f"the database cannot be walked: {failure}")
            self._is_done = True


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


__all__ = ("Verification", "verify_structure")
