"""The process's own allocator. glibc keeps what small allocations freed, several times what is in use, and gives that
back when it is asked to; and it keeps it apart for every few threads, so that what one freed no other can use. Other
allocators do so by themselves, or cannot be asked."""

import ctypes
import os
import sys

MAX_ARENAS = 2
"""One for the thread that computes, as far as it comes first, and one for workers: what they allocate is large and
rare, so they hardly wait for each other."""

_M_ARENA_MAX = -8
_ARENA_VARIABLES = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")


def bound_arenas() -> None:
    """Have threads share what they freed, unless somebody has set otherwise. Before they start: those that there are
    keep to what they have."""
    if sys.platform != "linux" or any(name in os.environ for name in _ARENA_VARIABLES):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(ctypes.c_int(_M_ARENA_MAX), ctypes.c_int(MAX_ARENAS))


def trim_heap() -> None:
    """Give freed memory back to the system. Any thread; takes milliseconds for a heap of some hundred MiB."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


__all__ = ("bound_arenas", "trim_heap")
