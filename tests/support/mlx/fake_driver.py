"""A CUDA driver whose device is host memory: a copy on a stream arrives when that is synchronised, and not before."""

import ctypes
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray


class FakeDriver:
    """A Driver. `num_host_allocations`: how many buffers it locks at most; None: any number."""

    def __init__(self, num_host_allocations: int | None = None) -> None:
        self.calls: list[str] = []
        self.fails_on = ""
        self.streams: set[int] = set()
        self.locked: dict[int, NDArray[np.uint8]] = {}
        self._num_left = num_host_allocations
        self._queued: dict[int, list[tuple[int, int, int]]] = {}
        self._num_streams = 0
        self._lock = Lock()

    def call(self, name: str, *arguments: Any) -> None:
        with self._lock:
            self.calls.append(name)
            if name == self.fails_on:
                raise RuntimeError(f"{name} failed with CUDA error 700")
            getattr(self, f"_{name}")(*arguments)

    def _cuMemHostAlloc(self, out: Any, size: ctypes.c_size_t, _flags: int) -> None:  # noqa: N802 - the driver's name
        if self._num_left == 0:
            raise RuntimeError("cuMemHostAlloc failed with CUDA error 2")
        if self._num_left is not None:
            self._num_left -= 1
        memory = np.full(size.value, 0xEE, np.uint8)
        self.locked[memory.ctypes.data] = memory
        out._obj.value = memory.ctypes.data

    def _cuStreamCreate(self, out: Any, flags: int) -> None:  # noqa: N802
        assert flags == 1, "it would wait for the NULL stream"
        self._num_streams += 1
        self.streams.add(self._num_streams)
        self._queued[self._num_streams] = []
        out._obj.value = self._num_streams

    def _cuMemcpyDtoHAsync_v2(  # noqa: N802
        self, to: ctypes.c_void_p, source: ctypes.c_uint64, size: ctypes.c_size_t, stream: ctypes.c_void_p
    ) -> None:
        self._queued[stream.value or 0].append((to.value or 0, source.value, size.value))

    def _cuStreamSynchronize(self, stream: ctypes.c_void_p) -> None:  # noqa: N802
        for copy in self._queued[stream.value or 0]:
            ctypes.memmove(*copy)
        self._queued[stream.value or 0].clear()

    def _cuMemcpyDtoH_v2(self, to: ctypes.c_void_p, source: ctypes.c_uint64, size: ctypes.c_size_t) -> None:  # noqa: N802
        ctypes.memmove(to.value or 0, source.value, size.value)
