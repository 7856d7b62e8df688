"""Large buffers that are used again: touching fresh memory costs as much as decoding into it.

A buffer is free when nothing but the pool refers to it, counted by references: every view of a numpy array holds its
owner. So nobody gives a buffer back, and one that somebody still reads is never handed out.
"""

from sys import getrefcount
from threading import Lock

import numpy as np

from adapters.zstd.planes import Bytes

_SMALL_BYTES = 1 << 16


def _references(buffers: list[Bytes], index: int) -> int:
    return getrefcount(buffers[index])


# Measured, not known: what counts as a reference differs between versions of Python.
_UNUSED_COUNT = _references([np.empty(1, np.uint8)], 0)


class BufferPool:
    """Keeps at most `keep_bytes`; beyond that, buffers are ordinary memory. Any thread."""

    def __init__(self, keep_bytes: int = 256 << 20) -> None:
        self._keep_bytes = keep_bytes
        self._lock = Lock()
        self._buffers: list[Bytes] = []

    def take(self, size_bytes: int) -> Bytes:
        """An uninitialised array of `size_bytes`, aligned to at least 16 bytes."""
        if size_bytes < _SMALL_BYTES:
            return np.empty(size_bytes, np.uint8)
        with self._lock:
            for index in range(len(self._buffers)):
                fits = size_bytes <= self._buffers[index].size <= size_bytes + size_bytes // 8
                if fits and _references(self._buffers, index) <= _UNUSED_COUNT:
                    return self._buffers[index][:size_bytes]
            buffer = np.empty(size_bytes, np.uint8)
            self._buffers.append(buffer)
            self._trim()
        return buffer[:size_bytes]

    @property
    def kept_bytes(self) -> int:
        with self._lock:
            return sum(buffer.size for buffer in self._buffers)

    def _trim(self) -> None:
        # Forgetting a buffer in use only means that it is not used again.
        while len(self._buffers) > 1 and sum(buffer.size for buffer in self._buffers) > self._keep_bytes:
            del self._buffers[0]


__all__ = ("BufferPool",)
