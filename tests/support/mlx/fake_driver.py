"""A CUDA driver whose device is host memory: a copy on a stream arrives when that is synchronised, and not before."""

import ctypes
from threading import Lock
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray


def host_address(array: mx.array) -> mx.array:
    """uint64 [1]: the address of an array's own bytes, which are evaluated for it."""
    mx.eval(array)
    found = np.asarray(memoryview(array)).__array_interface__["data"][0]  # type: ignore[arg-type]
    return mx.array([found], dtype=mx.uint64)


class FakeDriver:
    """A Driver. A call named by `fails_on` raises."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails_on = ""
        self.streams: set[int] = set()
        self.locked: dict[int, NDArray[np.uint8]] = {}
        self._queued: dict[int, list[tuple[int, int, int]]] = {}
        self._lock = Lock()

    def call(self, name: str, *arguments: Any) -> None:
        with self._lock:
            self.calls.append(name)
            if name == self.fails_on:
                raise RuntimeError(f"{name} failed with CUDA error 700")
            getattr(self, f"_{name}")(*arguments)

    def _cuMemHostAlloc(self, out: Any, size: ctypes.c_size_t, _flags: int) -> None:  # noqa: N802 - the driver's name
        memory = np.full(size.value, 0xEE, np.uint8)
        self.locked[memory.ctypes.data] = memory
        out._obj.value = memory.ctypes.data

    def _cuStreamCreate(self, out: Any, flags: int) -> None:  # noqa: N802
        assert flags == 1, "it would wait for the NULL stream"
        out._obj.value = len(self.streams) + 1
        self.streams.add(out._obj.value)
        self._queued[out._obj.value] = []

    def _cuMemcpyDtoHAsync_v2(self, to: Any, source: Any, size: Any, stream: Any) -> None:  # noqa: N802
        self._queued[stream.value].append((to.value, source.value, size.value))

    _cuMemcpyHtoDAsync_v2 = _cuMemcpyDtoHAsync_v2  # noqa: N815

    def _cuStreamSynchronize(self, stream: Any) -> None:  # noqa: N802
        for copy in self._queued[stream.value]:
            ctypes.memmove(*copy)
        self._queued[stream.value].clear()

    def _cuMemcpyDtoH_v2(self, to: Any, source: Any, size: Any) -> None:  # noqa: N802
        ctypes.memmove(to.value, source.value, size.value)

    _cuMemcpyHtoD_v2 = _cuMemcpyDtoH_v2  # noqa: N815
