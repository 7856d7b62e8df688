"""Large buffers that are used again: touching fresh memory costs as much as decoding into it.

A buffer is free when nothing but the pool refers to it, counted by references: every view of a numpy array holds its
owner. So nobody gives a buffer back, and one that somebody still reads is never handed out. What is free is memory that
holds nothing: it goes when `keep_takes` others were taken without it, and all of it when memory is short (`give_back`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from sys import getrefcount
from threading import Lock

import numpy as np

from adapters.zstd.planes import Bytes

_SMALL_BYTES = 1 << 16

Allocate = Callable[[int], Bytes]
"""So many bytes or a few more, as an array that is a view of no other: the references to it tell whether it is used."""


def _ordinary(size_bytes: int) -> Bytes:
    return np.empty(size_bytes, np.uint8)


@dataclass(slots=True, eq=False)
class _Kept:
    """`taken_at`: how many buffers had been taken when this one last was."""

    buffer: Bytes
    taken_at: int

    @property
    def num_references(self) -> int:
        return getrefcount(self.buffer)


# Measured, not known: what counts as a reference differs between versions of Python.
_UNUSED_COUNT = _Kept(np.empty(1, np.uint8), 0).num_references


class BufferPool:
    """Keeps at most `keep_bytes`; beyond that, buffers are ordinary memory. Any thread."""

    def __init__(self, keep_bytes: int = 256 << 20, keep_takes: int = 1024) -> None:
        self._keep_bytes = keep_bytes
        self._keep_takes = keep_takes
        self._allocate: Allocate = _ordinary
        self._num_takes = 0
        self._lock = Lock()
        self._kept: list[_Kept] = []

    def take(self, size_bytes: int) -> Bytes:
        """An uninitialised array of `size_bytes`, aligned to at least 16 bytes."""
        if size_bytes < _SMALL_BYTES:
            return _ordinary(size_bytes)
        with self._lock:
            self._num_takes += 1
            self._forget_unused(self._num_takes - self._keep_takes)
            found = self._free(size_bytes)
            if found is not None:
                found.taken_at = self._num_takes
                return found.buffer[:size_bytes]
            if size_bytes > self._keep_bytes:
                return _ordinary(size_bytes)
            allocate, taken_at = self._allocate, self._num_takes
        made = _Kept(allocate(size_bytes), taken_at)  # outside the lock: it may take as long as touching all of it
        taken = made.buffer[:size_bytes]  # before anybody else could find it unused
        with self._lock:
            self._trim(made.buffer.size)
            self._kept.append(made)
        return taken

    def allocate_by(self, allocate: Allocate) -> None:
        """From now on, what is kept."""
        with self._lock:
            self._allocate = allocate

    def keep_at_most(self, num_bytes: int) -> None:
        """From now on."""
        with self._lock:
            self._keep_bytes = num_bytes
            self._trim()

    @property
    def kept_bytes(self) -> int:
        with self._lock:
            return self._kept_bytes()

    def give_back(self) -> None:
        """Forget what nobody uses."""
        with self._lock:
            self._forget_unused(self._num_takes)

    def _free(self, size_bytes: int) -> _Kept | None:
        for kept in self._kept:
            fits = size_bytes <= kept.buffer.size <= size_bytes + size_bytes // 8
            if fits and kept.num_references <= _UNUSED_COUNT:
                return kept
        return None

    def _trim(self, coming_bytes: int = 0) -> None:
        """Forget until so much more may be kept: what nobody uses first, the longest unused, then the oldest. To forget
        a buffer in use only means that it is not used again."""
        while self._kept and self._kept_bytes() + coming_bytes > self._keep_bytes:
            unused = [kept for kept in self._kept if kept.num_references <= _UNUSED_COUNT]
            self._kept.remove(min(unused or self._kept, key=lambda kept: kept.taken_at))

    def _forget_unused(self, until: int) -> None:
        """Of those that were last taken by then."""
        self._kept = [kept for kept in self._kept if kept.taken_at > until or kept.num_references > _UNUSED_COUNT]

    def _kept_bytes(self) -> int:
        return sum(kept.buffer.size for kept in self._kept)


POOL = BufferPool()
"""The process's own: whoever decodes shares it, so that it is bounded once."""

FRAMES = BufferPool(keep_bytes=512 << 20)
"""Its own as well: what readers gather frames in, each until it is decoded."""


__all__ = ("FRAMES", "POOL", "Allocate", "BufferPool")
