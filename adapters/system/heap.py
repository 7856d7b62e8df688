"""The process's own allocator. glibc keeps what small allocations freed, several times what is in use, and gives that
back when it is asked to; and it keeps it apart for every few threads, so that what one freed no other can use. Other
allocators do so by themselves, or cannot be asked."""

import ctypes
import os
import sys
from typing import Any

MAX_ARENAS = 2
"""One for the thread that computes, as far as it comes first, and one for workers: what they allocate is large and
rare, so they hardly wait for each other."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_ARENA_VARIABLES = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
_THRESHOLD_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")

_TRIMMING_BYTES = 100 << 10
"""Freeing so much has glibc look at the end of a heap, and it is less than what is never allocated there."""

_MMAP_BYTES = 32 << 20
_HEAP_BYTES = 2 * _MMAP_BYTES
"""Where glibc's own adjusting ends: blocks up to the one are cut from a heap, and as much as the other may be free at
its end. A thread's heap grows to as much, and then it gets another."""

_KEPT_BYTES = 384 << 20
"""More than the blocks of a GPU's chunk are (8 of 37.7 MB for a model of 4B). The first heap has no such bound."""


def bound_arenas() -> None:
    """Have threads share what they freed, unless somebody has set otherwise. Before they start: those that there are
    keep to what they have."""
    if sys.platform != "linux" or any(name in os.environ for name in _ARENA_VARIABLES):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(ctypes.c_int(_M_ARENA_MAX), ctypes.c_int(MAX_ARENAS))


def keep_freed() -> None:
    """Have what threads free stay theirs until `trim_heap`, unless somebody has set otherwise. A transaction of the
    store allocates all that it writes anew and frees it when it ends. Left to itself glibc gives that back each time,
    one heap of 64 MiB after the other, so that every page that is stored takes a fault."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt") and _may_set_thresholds():
        _set_thresholds(libc, _KEPT_BYTES, _HEAP_BYTES)


def trim_heap() -> None:
    """Give freed memory back to the system. Any thread; takes milliseconds for a heap of some hundred MiB.

    `malloc_trim` leaves out the free end of every arena but the first, up to 64 MiB once large blocks were freed: the
    calling thread's own is cut as well.
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
    """glibc cuts the end off when a large block is freed there and more than a threshold is at it. Setting that ends
    its adjusting, so what it adjusts is left as `keep_freed` sets it."""
    libc.malloc.restype = ctypes.c_void_p
    _set_thresholds(libc, 0, 0)
    try:
        libc.free(ctypes.c_void_p(libc.malloc(ctypes.c_size_t(_TRIMMING_BYTES))))
    finally:
        _set_thresholds(libc, _KEPT_BYTES, _HEAP_BYTES)


def _may_set_thresholds() -> bool:
    return not any(name in os.environ for name in _THRESHOLD_VARIABLES)


def _set_thresholds(libc: Any, kept_bytes: int, pad_bytes: int) -> None:
    """`kept_bytes`: how much may be free at the end of a heap. `pad_bytes`: how much is left there when more is; where
    that is as much as a thread's heap may have, all its heaps stay."""
    libc.mallopt(ctypes.c_int(_M_TRIM_THRESHOLD), ctypes.c_int(kept_bytes))
    libc.mallopt(ctypes.c_int(_M_TOP_PAD), ctypes.c_int(pad_bytes))
    libc.mallopt(ctypes.c_int(_M_MMAP_THRESHOLD), ctypes.c_int(_MMAP_BYTES))
