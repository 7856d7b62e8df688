"""The settings of glibc's allocator, which keeps freed memory, several times what is in use, until it is asked to
return it, in arenas that a few threads share each. Other allocators return memory by themselves or have no such
call."""

import ctypes
import os
import sys
from typing import Any

MAX_ARENAS = 2
"""One for the compute thread and one for workers, whose allocations are large and rare, so that they seldom wait."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_ARENA_VARIABLES = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
_THRESHOLD_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")

_TRIMMING_BYTES = 100 << 10
"""Freeing a block of this size makes glibc check the end of a heap; larger blocks are mapped instead."""

_MMAP_BYTES = 32 << 20
_HEAP_BYTES = 2 * _MMAP_BYTES
"""The limits of glibc's own adjustment: the largest block that is cut from a heap, and the most that may be free at a
heap's end, which is also the most that a thread's heap grows to."""

_KEPT_BYTES = 384 << 20
"""More than the blocks of a GPU's chunk (8 of 37.7 MB for a model of 4B)."""

SMALL_BYTES = 1 << 30
"""The memory of a process below which what its heaps keep is too much of it: 64 MiB a heap, which nothing counts."""

_LITTLE_BYTES = 128 << 10
"""glibc's own thresholds at the start."""

_KEEPING = (_KEPT_BYTES, _HEAP_BYTES, _MMAP_BYTES)
_thresholds: list[tuple[int, int, int]] = [_KEEPING]
"""The present thresholds, which a trim restores."""


def bound_arenas() -> None:
    """Limits the number of arenas, unless the environment sets it. Call it before threads start: existing ones keep
    their arena."""
    if sys.platform != "linux" or any(name in os.environ for name in _ARENA_VARIABLES):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(ctypes.c_int(_M_ARENA_MAX), ctypes.c_int(MAX_ARENAS))


def keep_freed() -> None:
    """Keeps freed memory until `trim_heap`, unless the environment sets the thresholds. A transaction of the store
    allocates all that it writes and frees it at its end. By default glibc returns that each time, so that every page
    that is written takes a page fault."""
    _keep(_KEEPING)


def return_freed() -> None:
    """Undoes `keep_freed`: freed memory is returned at once, as a process with little memory needs it."""
    _keep((_LITTLE_BYTES, _LITTLE_BYTES, _LITTLE_BYTES))


def trim_heap() -> None:
    """Returns freed memory to the system. Any thread; takes milliseconds for a heap of some hundred MiB.

    `malloc_trim` skips the free end, up to 64 MiB, of every arena but the first; the calling thread's is cut too.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    trim = getattr(libc, "malloc_trim", None)
    if trim is None:
        return
    trim(ctypes.c_size_t(0))
    if hasattr(libc, "mallopt") and _may_set_thresholds():
        _cut_end(libc)


def _cut_end(libc: Any) -> None:
    """Cuts the end of the calling thread's heap, which glibc does when a large block is freed and more than a threshold
    is free. Setting the threshold ends glibc's adjustment, so all of them are set as in `keep_freed` afterwards."""
    libc.malloc.restype = ctypes.c_void_p
    _set_thresholds(libc, 0, 0, _MMAP_BYTES)
    try:
        libc.free(ctypes.c_void_p(libc.malloc(ctypes.c_size_t(_TRIMMING_BYTES))))
    finally:
        _set_thresholds(libc, *_thresholds[0])


def _may_set_thresholds() -> bool:
    return not any(name in os.environ for name in _THRESHOLD_VARIABLES)


def _keep(thresholds: tuple[int, int, int]) -> None:
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt") and _may_set_thresholds():
        _thresholds[0] = thresholds
        _set_thresholds(libc, *thresholds)


def _set_thresholds(libc: Any, kept_bytes: int, pad_bytes: int, mmap_bytes: int) -> None:
    """`kept_bytes`: the most that may be free at the end of a heap. `pad_bytes`: how much is left when it is cut; with
    the most that a thread's heap may have, none of its heaps is returned. `mmap_bytes`: larger blocks are mapped."""
    libc.mallopt(ctypes.c_int(_M_TRIM_THRESHOLD), ctypes.c_int(kept_bytes))
    libc.mallopt(ctypes.c_int(_M_TOP_PAD), ctypes.c_int(pad_bytes))
    libc.mallopt(ctypes.c_int(_M_MMAP_THRESHOLD), ctypes.c_int(mmap_bytes))
