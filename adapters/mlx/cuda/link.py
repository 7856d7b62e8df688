"""Copies between host memory and an NVIDIA GPU at the speed of the bus.

MLX moves an array in or out through managed memory, page by page: 1 to 1.5 GB/s where the bus carries 50, and an array
that was read once stays in host memory. Here the driver copies to and from the address of an evaluated array, through
page-locked pieces that a few threads fill or empty. Copies are exact. Page-locked memory is allocated once:
`LOCKED_BYTES`.

`find_link` returns None if there is no such GPU, or if a round trip does not return what was sent; callers then let MLX
move the bytes.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Protocol, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.runtime.arrays import evaluate, trial
from adapters.mlx.runtime.device import has_cuda

PIECE_BYTES, NUM_PIECES = 8 << 20, 8
"""The size of one page-locked piece, and how many copies can be under way at once."""

LOCKED_BYTES = NUM_PIECES * PIECE_BYTES

SMALL_BYTES = 1 << 16
"""Smaller copies go through the driver's own staging."""

_PORTABLE = 1
"""A flag of cuMemHostAlloc: page-locked for every thread's context."""
_NON_BLOCKING = 1
"""A flag of cuStreamCreate: the stream neither waits for the NULL stream nor delays it."""
_RELAXED = 2
"""A mode of cuThreadExchangeStreamCaptureMode: calls leave the graphs that other threads record alone."""

_SHORT = frozenset(
    {"cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"}
)
"""Calls that wait for nothing: the interpreter's lock is kept, since getting it back takes longer than they do."""

_ADDRESS_KERNEL = "out[0] = reinterpret_cast<uint64_t>(inp);"


class Driver(Protocol):
    """The CUDA driver's calls."""

    def call(self, name: str, *arguments: object) -> None:
        """`name` as in cuda.h; numbers without a ctypes type are C ints. Raises RuntimeError with the driver's status,
        AttributeError for an unknown call."""
        ...


class CudaDriver:
    """The CUDA driver on device 0, in the context that MLX computes in. Any thread; the interpreter's lock is released
    during each call that may wait.

    MLX records operations into graphs. During a recording the driver refuses calls of other threads that might wait for
    the device (page-locking memory, for example), and may abort the recording, which fails a step. So calls are made in
    a mode that leaves recordings alone.
    """

    def __init__(self) -> None:
        """Opens the driver. Raises OSError or RuntimeError if there is none."""
        self._library: Any = ctypes.CDLL("libcuda.so.1")
        self._short_calls: Any = ctypes.PyDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        device = ctypes.c_int()
        self._do("cuInit", 0)
        self._do("cuDeviceGet", ctypes.byref(device), 0)
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)

    def call(self, name: str, *arguments: object) -> None:
        self._do("cuCtxSetCurrent", self._context)  # of the calling thread, which may be a new one
        mode = ctypes.byref(ctypes.c_int(_RELAXED))
        self._do("cuThreadExchangeStreamCaptureMode", mode)  # which writes the thread's own mode there
        try:
            self._do(name, *arguments)
        finally:
            self._do("cuThreadExchangeStreamCaptureMode", mode)

    def _do(self, name: str, *arguments: object) -> None:
        status = getattr(self._short_calls if name in _SHORT else self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with CUDA error {status}")


@dataclass(frozen=True, slots=True)
class _Piece:
    """Page-locked staging for one copy at a time, with a stream of its own so that a thread waits for its copy only."""

    memory: NDArray[np.uint8]
    stream: ctypes.c_void_p

    @property
    def address(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.memory.ctypes.data)

    @classmethod
    def allocated(cls, driver: Driver) -> "_Piece":
        found, stream = ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("cuMemHostAlloc", ctypes.byref(found), ctypes.c_size_t(PIECE_BYTES), _PORTABLE)
        driver.call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        locked: Any = (ctypes.c_uint8 * PIECE_BYTES).from_address(cast(int, found.value))
        return cls(np.frombuffer(locked, np.uint8), stream)


class CudaLink:
    """`address_of` and `write` on the compute thread only; `download` on any thread."""

    def __init__(self, driver: Driver) -> None:
        """Allocates the pieces. Raises RuntimeError if the driver refuses memory or streams."""
        self._driver = driver
        self._pieces: SimpleQueue[_Piece] = SimpleQueue()
        for _ in range(NUM_PIECES):
            self._pieces.put(_Piece.allocated(driver))
        self._threads = ThreadPoolExecutor(min(NUM_PIECES, (os.cpu_count() or 2) // 2 or 1), "cairn-upload")
        self._read_address = _kernel("cairn_address", ["inp"], _ADDRESS_KERNEL)
        self._lock = Lock()

    def address_of(self, array: mx.array) -> mx.array:
        """uint64 [1], lazy: the address of a contiguous array. The array stays there for its life, unless it is read on
        the host."""
        return self._read_address(
            inputs=[array.view(mx.uint8)],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            output_shapes=[(1,)],
            output_dtypes=[mx.uint64],
        )[0]

    def write(self, targets: Sequence[tuple[mx.array, Sequence[memoryview]]]) -> None:
        """Evaluates contiguous arrays and overwrites each with these bytes, joined; no array may share memory with
        another. Waits. Raises RuntimeError; the arrays' content is undefined then."""
        addresses = [self.address_of(array) for array, _ in targets]
        evaluate([*(array for array, _ in targets), *addresses])
        found = [cast(int, address.item()) for address in addresses]
        copies = [self._threads.submit(self._copy_in, at, parts) for at, (_, parts) in zip(found, targets, strict=True)]
        wait(copies)
        for copy in copies:
            copy.result()

    def download(self, address: mx.array, size_bytes: int) -> memoryview:
        """Returns a flat, read-only copy of the bytes of an array that the caller keeps alive, given its queued
        `address_of`. Waits for it. Raises RuntimeError."""
        with self._lock:  # two threads must not wait for one array at a time
            source = cast(int, address.item())
        copy = np.empty(size_bytes, np.uint8)
        piece = self._free_piece(size_bytes)
        if piece is None:
            to, size = ctypes.c_void_p(copy.ctypes.data), ctypes.c_size_t(size_bytes)
            self._driver.call("cuMemcpyDtoH_v2", to, ctypes.c_uint64(source), size)
            return copy.data.toreadonly()
        for start in range(0, size_bytes, PIECE_BYTES):
            part = copy[start : start + PIECE_BYTES]
            at, size = ctypes.c_uint64(source + start), ctypes.c_size_t(part.size)
            self._driver.call("cuMemcpyDtoHAsync_v2", piece.address, at, size, piece.stream)
            self._driver.call("cuStreamSynchronize", piece.stream)
            np.copyto(part, piece.memory[: part.size])
        self._pieces.put(piece)  # not after an error: the failed copy may still write to it
        return copy.data.toreadonly()

    def _free_piece(self, size_bytes: int) -> _Piece | None:
        try:
            return self._pieces.get_nowait() if size_bytes >= SMALL_BYTES else None
        except Empty:
            return None

    def _copy_in(self, address: int, parts: Sequence[memoryview]) -> None:
        piece = self._free_piece(sum(part.nbytes for part in parts))
        used = 0
        for source, size_bytes in _runs(parts):
            if piece is None:
                at, size = ctypes.c_void_p(source), ctypes.c_size_t(size_bytes)
                self._driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), at, size)
                address += size_bytes
                continue
            start = 0
            while start < size_bytes:
                count = min(size_bytes - start, PIECE_BYTES - used)
                ctypes.memmove(piece.memory.ctypes.data + used, source + start, count)
                start, used = start + count, used + count
                if used == PIECE_BYTES:
                    self._send(piece, address, used)
                    address, used = address + used, 0
        if piece is not None:
            self._send(piece, address, used)
            self._pieces.put(piece)

    def _send(self, piece: _Piece, address: int, size_bytes: int) -> None:
        if size_bytes:
            at, size = ctypes.c_uint64(address), ctypes.c_size_t(size_bytes)
            self._driver.call("cuMemcpyHtoDAsync_v2", at, piece.address, size, piece.stream)
            self._driver.call("cuStreamSynchronize", piece.stream)


def _runs(parts: Sequence[memoryview]) -> list[tuple[int, int]]:
    """Returns address and bytes of the parts in order; adjacent ones are one run, because each copy releases the
    interpreter's lock and has to get it back."""
    runs: list[tuple[int, int]] = []
    for part in parts:
        array = np.frombuffer(part, np.uint8)
        at, size_bytes = array.ctypes.data, array.size
        if runs and sum(runs[-1]) == at:
            at, size_bytes = runs[-1][0], runs.pop()[1] + size_bytes
        runs.append((at, size_bytes))
    return runs


def _kernel(name: str, inputs: list[str], source: str) -> Callable[..., list[mx.array]]:
    made = cast(Any, mx.fast).cuda_kernel(
        name=name, input_names=inputs, output_names=["out"], source=source, ensure_row_contiguous=False
    )
    return cast(Callable[..., list[mx.array]], made)


@cache
def find_link() -> CudaLink | None:
    """Returns the link of this process, proven by a round trip; None if there is none. Compute thread only."""
    if not has_cuda():
        return None
    try:
        link = CudaLink(CudaDriver())
        sent = np.arange(1 << 16, dtype=np.uint16).tobytes()
        there = mx.zeros(1 << 16, mx.uint16)
        with trial():
            link.write([(there, [memoryview(sent)[:7], memoryview(sent)[7:]])])
            address = link.address_of(there)
            evaluate([address])
        return link if bytes(link.download(address, len(sent))) == sent else None
    except (OSError, RuntimeError, AttributeError, ValueError):
        return None
