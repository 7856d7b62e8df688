"""Notes of the records that threads are reading through the map, in a file that outlives the process.

A sector that the disk cannot read kills the process that touches it in the map (SIGBUS), and so may an index page that
was damaged at rest. Each thread notes the record that it is about to touch and removes the note afterwards:

    u64[512] in a mapped file    [0] lives in a row that ended in mid-write before they completed one
                                 [n] 0; the id of the record whose payload is touched; READ or WRITE in a transaction

A note that an earlier process left means that the process died of that access, or was killed during it. Another process
repeats it: it reads those records and the index, and after a WRITE it writes and aborts. Only the records that it dies
of are quarantined; the index is given up if it dies of anything else, or if writing ended two lives in a row.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from mmap import mmap
from pathlib import Path

from adapters.lmdb.faults import FatalIndex
from adapters.lmdb.private_files import open_private

READ = (1 << 64) - 1
WRITE = READ - 1
_NUM_SLOTS, _BYTES = 512, 8
_MAX_LIVES = 2


class Notes:
    """The notes of this process. Any thread, but `begin`, `clear` and `close` are called while no other thread uses the
    database. Without room for the file nothing is noted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap | None = None
        self._numbers = memoryview(bytes(_BYTES)).cast("Q")
        self._free: deque[int] = deque()

    def begin(self, unreadable: Callable[[Sequence[int]], Iterable[int]]) -> list[int]:
        """Returns ids of records that ended an earlier life and are still `unreadable`. Raises FatalIndex when writing
        ended two lives, or when `unreadable` does, which reads the index too and, given WRITE, tries to write."""
        if self._map is None:
            self._open()
        if self._map is None:
            return []
        lives, *left = self._numbers
        ids = sorted(set(left) - {0, READ})
        bad = list(unreadable(ids)) if any(left) else []
        lives = lives + 1 if WRITE in left and not bad else 0
        self.clear()
        if lives >= _MAX_LIVES:
            raise FatalIndex(f"writing to it ended {lives} processes in a row")
        self._numbers[0] = lives
        return bad

    @contextmanager
    def of(self, number: int) -> Generator[None]:
        """Notes a record's id, READ or WRITE, while the block runs."""
        try:
            slot = self._free.pop()
        except IndexError:
            yield
            return
        self._numbers[slot] = number
        try:
            yield
        finally:
            self._numbers[slot] = 0
            self._free.append(slot)

    def settle(self) -> None:
        """Records that a write transaction was completed."""
        if self._map is not None:
            self._numbers[0] = 0

    def clear(self) -> None:
        """Removes all notes."""
        if self._map is not None:
            self._map[:] = bytes(len(self._map))

    def close(self) -> None:
        """Removes all notes and the map. Repeating it does nothing."""
        self.clear()
        self._free.clear()
        self._numbers.release()
        self._numbers = memoryview(bytes(_BYTES)).cast("Q")
        if self._map is not None:
            self._map.close()
            self._map = None

    def _open(self) -> None:
        size_bytes = _NUM_SLOTS * _BYTES
        try:
            handle = open_private(self._path, os.O_RDWR | os.O_CREAT)
        except OSError:
            return
        try:
            missing_bytes = size_bytes - os.fstat(handle).st_size
            # Written, not only reserved: a page without a place on the volume would be fatal to write to in the map.
            if missing_bytes > 0 and os.pwrite(handle, bytes(size_bytes), 0) != size_bytes:
                return
            self._map = mmap(handle, size_bytes)
        except OSError:
            return
        finally:
            os.close(handle)
        self._numbers = memoryview(self._map).cast("Q")
        self._free = deque(range(1, _NUM_SLOTS))
