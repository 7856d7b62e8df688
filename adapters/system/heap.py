"""The process's own allocator. glibc keeps what small allocations freed, several times what is in use; it gives that
back when it is asked to. Other allocators do so by themselves, or cannot be asked."""

import ctypes
import sys


def trim_heap() -> None:
    """Give freed memory back to the system. Any thread; takes milliseconds for a heap of some hundred MiB."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


__all__ = ("trim_heap",)
