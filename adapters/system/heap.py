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

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_ARENA_VARIABLES = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
_THRESHOLD_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")

_TRIMMING_BYTES = 100 << 10
"""Freeing so much has glibc look at the end of a heap, and it is less than what is never allocated there."""

_MMAP_BYTES = 32 << 20
_KEPT_BYTES = 2 * _MMAP_BYTES
"""Where glibc's own adjusting ends: blocks up to the one are cut from a heap, and up to the other stays at its end."""


def bound_arenas() -> None:
    """Have threads share what they freed, unless somebody has set otherwise. Before they start: those that there are
    keep to what they have."""
    if sys.platform != "linux" or any(name in os.environ for name in _ARENA_VARIABLES):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(ctypes.c_int(_M_ARENA_MAX), ctypes.c_int(MAX_ARENAS))


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
    if hasattr(libc, "mallopt") and not any(name in os.environ for name in _THRESHOLD_VARIABLES):
        _cut_end(libc)


def _cut_end(libc: Any) -> None:
    """glibc cuts the end off when a large block is freed there and more than a threshold is at it. Setting that ends
    its adjusting of both thresholds, so they are left where it would come to."""
    libc.malloc.restype = ctypes.c_void_p
    libc.mallopt(ctypes.c_int(_M_TRIM_THRESHOLD), ctypes.c_int(0))
    try:
        libc.free(ctypes.c_void_p(libc.malloc(ctypes.c_size_t(_TRIMMING_BYTES))))
    finally:
        libc.mallopt(ctypes.c_int(_M_TRIM_THRESHOLD), ctypes.c_int(_KEPT_BYTES))
        libc.mallopt(ctypes.c_int(_M_MMAP_THRESHOLD), ctypes.c_int(_MMAP_BYTES))


__all__ = ("bound_arenas", "trim_heap")
