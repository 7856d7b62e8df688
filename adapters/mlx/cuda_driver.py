"""The CUDA driver's own calls, in the context that MLX computes in: for what MLX has no call.

Any thread. No call holds the interpreter's lock while it waits.

MLX records operations into graphs, and while it does the driver refuses other threads what might wait for the device
(page-locking memory, say), and may give the recording up, which fails a step. Calls from here are none of it: they are
made in a mode that leaves others' recordings alone.
"""

import ctypes
from typing import Any, Protocol

PORTABLE = 1
"""Page-locked for every thread's context; a flag of cuMemHostAlloc."""

MAPPED = 2
"""Readable by kernels where it lies; a flag of cuMemHostAlloc."""

RELAXED = 2
"""Of cuThreadExchangeStreamCaptureMode: a call is refused by no recording."""

NON_BLOCKING = 1
"""Neither waits for the NULL stream nor holds it up; a flag of cuStreamCreate."""


class Driver(Protocol):
    def call(self, name: str, *arguments: object) -> None:
        """`name` as in cuda.h; numbers without a ctypes type are C ints. Raises RuntimeError with the driver's status,
        AttributeError where it knows no such call."""
        ...


def _has_no_modes(_mode: object) -> None:
    """What drivers before CUDA 10.1 have instead."""


class CudaDriver:
    """A Driver, on device 0."""

    def __init__(self, library: Any = None) -> None:
        """`library`: given by tests only. Raises OSError or RuntimeError where there is none."""
        self._library: Any = library or ctypes.CDLL("libcuda.so.1")
        self._exchange_mode: Any = getattr(self._library, "cuThreadExchangeStreamCaptureMode", _has_no_modes)
        self._context = ctypes.c_void_p()
        device = ctypes.c_int()
        self._do("cuInit", 0)
        self._do("cuDeviceGet", ctypes.byref(device), 0)
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)

    def call(self, name: str, *arguments: object) -> None:
        self._do("cuCtxSetCurrent", self._context)  # of the calling thread, which may be a new one
        mode = ctypes.byref(ctypes.c_int(RELAXED))
        self._exchange_mode(mode)  # holds this thread's own from here on
        try:
            self._do(name, *arguments)
        finally:
            self._exchange_mode(mode)

    def _do(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with CUDA error {status}")


__all__ = ("MAPPED", "NON_BLOCKING", "PORTABLE", "CudaDriver", "Driver")
