"""The calls into macOS that have no counterpart in Python: memory of the machine and of this process, the sleep
assertion, and the mark that keeps a folder out of backups.

A call returns None, or raises OSError, where the system lacks it, so that nothing depends on it. `MacCalls` is the
seam that a test replaces.
"""

import ctypes
import logging
import os
from collections.abc import Callable
from functools import cache
from typing import Any

_FOOTPRINT_OFFSET, _RUSAGE_V0_BYTES = 72, 96
"""`struct rusage_info_v0` of <sys/resource.h>: `ri_uuid` of 16 bytes, then ten of 8: `ri_user_time`, `ri_system_time`,
`ri_pkg_idle_wkups`, `ri_interrupt_wkups`, `ri_pageins`, `ri_wired_size`, `ri_resident_size`, `ri_phys_footprint`,
`ri_proc_start_abstime` and `ri_proc_exit_abstime`. Later versions only append to it."""

_RUSAGE_INFO_V0 = 0
_UTF8, _ASSERTION_ON = 0x08000100, 255
_FRAMEWORKS = "/System/Library/Frameworks"

_logger = logging.getLogger("cairn.engine")


class MacCalls:
    """The system calls. Each raises OSError or AttributeError where the system lacks it, or refuses."""

    def number(self, name: str) -> int:
        """Returns an integer of `sysctl`, of 4 or 8 bytes."""
        value, size = ctypes.c_uint64(0), ctypes.c_size_t(8)
        _check(_libc().sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)))
        return value.value

    def usage(self) -> bytes:
        """Returns `rusage_info_v0` of this process."""
        found = ctypes.create_string_buffer(_RUSAGE_V0_BYTES)
        _check(_libc().proc_pid_rusage(ctypes.c_int(os.getpid()), ctypes.c_int(_RUSAGE_INFO_V0), found))
        return found.raw

    def set_attribute(self, path: str, name: str, value: bytes) -> None:
        """Sets an extended attribute of a file or folder."""
        size, position, options = ctypes.c_size_t(len(value)), ctypes.c_uint32(0), ctypes.c_int(0)
        _check(_libc().setxattr(os.fsencode(path), name.encode(), value, size, position, options))

    def stay_awake(self, reason: str) -> int:
        """Keeps the machine from sleeping while it is idle, until `may_sleep` or the end of this process. Returns the
        assertion's number."""
        text, power = _framework("CoreFoundation"), _framework("IOKit")
        text.CFStringCreateWithCString.restype = ctypes.c_void_p
        words = [
            ctypes.c_void_p(text.CFStringCreateWithCString(None, word.encode(), ctypes.c_uint32(_UTF8)))
            for word in ("PreventUserIdleSystemSleep", reason)
        ]
        assertion = ctypes.c_uint32(0)
        try:
            if power.IOPMAssertionCreateWithName(
                words[0], ctypes.c_uint32(_ASSERTION_ON), words[1], ctypes.byref(assertion)
            ):
                raise OSError("the system refuses a sleep assertion")
        finally:
            for word in words:
                text.CFRelease(word)
        return assertion.value

    def may_sleep(self, assertion: int) -> None:
        """Releases a sleep assertion."""
        _framework("IOKit").IOPMAssertionRelease(ctypes.c_uint32(assertion))


def available_share(calls: MacCalls) -> float | None:
    """Returns the share of the machine's memory that is neither wired nor compressed."""
    level = attempt(lambda: calls.number("kern.memorystatus_level"), "read the available memory")
    return level / 100 if level is not None and 0 <= level <= 100 else None


def footprint_bytes(calls: MacCalls) -> int | None:
    """Returns the memory that the kernel charges to this process, by which it chooses what to end when memory is short.
    Buffers of Metal and compressed pages are included, clean pages of files are not."""
    usage = attempt(calls.usage, "read this process's footprint")
    if usage is None:
        return None
    return int.from_bytes(usage[_FOOTPRINT_OFFSET : _FOOTPRINT_OFFSET + 8], "little") or None


def attempt(call: Callable[[], Any], purpose: str) -> Any:
    """Returns the call's result, or None where it fails, which is logged once for each purpose."""
    try:
        return call()
    except (OSError, AttributeError) as error:
        _report(purpose, str(error))
        return None


@cache
def _report(purpose: str, error: str) -> None:
    _logger.warning("macOS does not let Cairn %s: %s", purpose, error)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _framework(name: str) -> Any:
    return ctypes.CDLL(f"{_FRAMEWORKS}/{name}.framework/{name}")


def _check(status: int) -> None:
    if status:
        raise OSError(error := ctypes.get_errno(), os.strerror(error))
