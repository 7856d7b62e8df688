"""Page-locked host memory that is used again: the bus fills it at its full speed, and nobody touches it anew.

    free ──take──► somebody reads it ──the last view of it goes──► free ──others are wanted more──► given back

A buffer is free when nothing but the pool refers to it, counted by references: every view of a numpy array holds its
owner. So nobody gives one back, and one that is still read is never handed out. Each has a stream of its own, so that
threads wait for their own copies only.

Whoever is refused (None) uses ordinary memory: beyond `max_bytes` that are locked, or where the driver locks no more.
"""

import ctypes
import logging
from dataclasses import dataclass
from sys import getrefcount
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapters.mlx.cuda_driver import NON_BLOCKING, PORTABLE, Driver

_LOOSE = 4
"""Times the bytes that are wanted a buffer may have: what is small must not hold what is large."""

_logger = logging.getLogger("cairn.mlx")


@dataclass(frozen=True, slots=True)
class Taken:
    """uint8 [n], not initialised, and the stream to fill it on: both are the taker's for as long as `memory` lives."""

    memory: NDArray[np.uint8]
    stream: ctypes.c_void_p


@dataclass(slots=True, eq=False)
class _Kept:
    """`taken_at`: how many buffers had been taken when this one last was."""

    memory: NDArray[np.uint8]
    stream: ctypes.c_void_p
    taken_at: int = 0

    @property
    def num_references(self) -> int:
        return getrefcount(self.memory)


# Measured, not known: what counts as a reference differs between versions of Python.
_UNUSED_COUNT = _Kept(np.empty(1, np.uint8), ctypes.c_void_p()).num_references


class HostBuffers:
    """Any thread."""

    def __init__(self, driver: Driver, max_bytes: int) -> None:
        self._driver = driver
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._kept: list[_Kept] = []
        self._locked_bytes = 0  # kept, or being allocated
        self._num_takes = 0

    @property
    def locked_bytes(self) -> int:
        return self._locked_bytes

    def take(self, size_bytes: int) -> Taken | None:
        """Never waits for one to come free."""
        capacity = _rounded(size_bytes)
        with self._lock:
            self._num_takes += 1
            found = self._free(size_bytes)
            if found is not None:
                found.taken_at = self._num_takes
                return Taken(found.memory[:size_bytes], found.stream)
            if not self._make_room(capacity):
                return None
            self._locked_bytes += capacity
        # Outside the lock: locking pages takes as long as touching them.
        try:
            made = self._allocated(capacity)
        except RuntimeError as error:
            with self._lock:
                self._locked_bytes -= capacity
                self._max_bytes = self._locked_bytes  # not asked again for each block
            _logger.warning("captured state is copied out slower, beyond %d locked bytes: %s", self._max_bytes, error)
            return None
        with self._lock:
            made.taken_at = self._num_takes
            self._kept.append(made)
            return Taken(made.memory[:size_bytes], made.stream)

    def _free(self, size_bytes: int) -> _Kept | None:
        """The smallest that fits."""
        fitting = [kept for kept in self._kept if size_bytes <= kept.memory.size <= size_bytes * _LOOSE]
        unused = (kept for kept in fitting if kept.num_references <= _UNUSED_COUNT)
        return min(unused, key=lambda kept: kept.memory.size, default=None)

    def _make_room(self, size_bytes: int) -> bool:
        """Give back what nobody uses, the longest unused first, if that makes room."""
        over = self._locked_bytes + size_bytes - self._max_bytes
        unused = [kept for kept in self._kept if kept.num_references <= _UNUSED_COUNT]
        if over > sum(kept.memory.size for kept in unused):
            return False
        for kept in sorted(unused, key=lambda kept: kept.taken_at):
            if over <= 0:
                break
            over -= kept.memory.size
            self._give_back(kept)
        return True

    def _give_back(self, kept: _Kept) -> None:
        self._kept.remove(kept)
        self._locked_bytes -= kept.memory.size
        self._driver.call("cuStreamDestroy_v2", kept.stream)
        self._driver.call("cuMemFreeHost", ctypes.c_void_p(kept.memory.ctypes.data))

    def _allocated(self, size_bytes: int) -> _Kept:
        stream, address = ctypes.c_void_p(), ctypes.c_void_p()
        self._driver.call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        try:
            self._driver.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size_bytes), PORTABLE)
        except RuntimeError:
            self._driver.call("cuStreamDestroy_v2", stream)
            raise
        memory: Any = (ctypes.c_uint8 * size_bytes).from_address(address.value or 0)
        return _Kept(np.frombuffer(memory, np.uint8), stream)


def _rounded(size_bytes: int) -> int:
    """Up to the next of four sizes between powers of two: what grows by a little each time uses the same again."""
    step = 1 << max(12, size_bytes.bit_length() - 3)
    return -(-size_bytes // step) * step


__all__ = ("HostBuffers", "Taken")
