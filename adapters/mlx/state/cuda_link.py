"""The bus between host memory and an NVIDIA GPU, used at its own speed.

MLX moves an array in or out through managed memory, page by page: 1 to 1.5 GB/s where the bus carries 50, and an array
that was read once stays in host memory. Here a kernel reads page-locked staging that a few threads fill, and the
driver copies out from where an evaluated array lies, which leaves it there, through page-locked pieces. All are exact
copies. What is page-locked is allocated once: `LOCKED_BYTES`, and nothing grows with what is served.

`find_link` gives None wherever there is no such GPU, or where a round trip does not return what was sent; callers
then let MLX move the bytes.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Protocol, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.runtime.arrays import evaluate, evaluate_soon
from adapters.mlx.runtime.device import has_cuda

HALF_BYTES = 64 << 20
"""Staging for uploads is two of these: one is filled while the bus empties the other."""

PIECE_BYTES, NUM_PIECES = 8 << 20, 4
"""Staging for downloads: what crosses at a time, and how many threads copy at once at that speed."""

LOCKED_BYTES = 2 * HALF_BYTES + NUM_PIECES * PIECE_BYTES

SMALL_BYTES = 1 << 16
"""Below this a download goes through the driver's own staging."""

_NUM_THREADS = min(8, (os.cpu_count() or 2) // 2)
_ALIGNMENT = 16
_NUM_GPU_THREADS = 132 * 1024

_PORTABLE, _MAPPED = 1, 2
"""Flags of cuMemHostAlloc: page-locked for every thread's context, and readable by kernels where it lies."""
_NON_BLOCKING = 1
"""A flag of cuStreamCreate: neither waits for the NULL stream nor holds it up."""
_RELAXED = 2
"""A mode of cuThreadExchangeStreamCaptureMode: no recording refuses a call."""

_READ_HOST = """
auto grid = cooperative_groups::this_grid();
const uint4* from = reinterpret_cast<const uint4*>(address[0]);
uint4* to = reinterpret_cast<uint4*>(out);
for (uint64_t i = grid.thread_rank(); i < count[0]; i += grid.size()) to[i] = from[i];
"""
_TELL_ADDRESS = "out[0] = reinterpret_cast<uint64_t>(inp);"


class Driver(Protocol):
    def call(self, name: str, *arguments: object) -> None:
        """`name` as in cuda.h; numbers without a ctypes type are C ints. Raises RuntimeError with the driver's status,
        AttributeError where it knows no such call."""
        ...


def _has_no_modes(_mode: object) -> None:
    """Stands for the call that drivers before CUDA 10.1 lack."""


class CudaDriver:
    """The CUDA driver's own calls, on device 0, in the context that MLX computes in. Any thread; no call holds the
    interpreter's lock while it waits.

    MLX records operations into graphs, and while it does the driver refuses other threads what might wait for the
    device (page-locking memory, say), and may give the recording up, which fails a step. Calls from here are made in a
    mode that leaves others' recordings alone.
    """

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
        mode = ctypes.byref(ctypes.c_int(_RELAXED))
        self._exchange_mode(mode)  # holds this thread's own from here on
        try:
            self._do(name, *arguments)
        finally:
            self._exchange_mode(mode)

    def _do(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with CUDA error {status}")


def _locked_memory(driver: Driver, size_bytes: int) -> NDArray[np.uint8]:
    """Page-locked for the life of the process, and readable by kernels at its own address."""
    found = ctypes.c_void_p()
    driver.call("cuMemHostAlloc", ctypes.byref(found), ctypes.c_size_t(size_bytes), _PORTABLE | _MAPPED)
    mapped: Any = (ctypes.c_uint8 * size_bytes).from_address(cast(int, found.value))
    return np.frombuffer(mapped, np.uint8)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Staging for one download at a time, and the stream to fill it on, so that threads wait for their own only."""

    memory: NDArray[np.uint8]
    stream: ctypes.c_void_p


class Downloads:
    """From device memory to the host, by threads that read captured state while the device computes. Any thread."""

    def __init__(self, driver: Driver) -> None:
        """Raises RuntimeError where the driver does not give what is needed."""
        self._driver = driver
        self._pieces: SimpleQueue[_Piece] = SimpleQueue()
        for _ in range(NUM_PIECES):
            stream = ctypes.c_void_p()
            driver.call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
            self._pieces.put(_Piece(_locked_memory(driver, PIECE_BYTES), stream))

    def copy_out(self, source: int, size_bytes: int) -> memoryview:
        """A flat, read-only copy of what lies at this address of the device. It is complete there, and stays until
        this returns. Raises RuntimeError."""
        copy = np.empty(size_bytes, np.uint8)
        try:
            piece = self._pieces.get_nowait() if size_bytes >= SMALL_BYTES else None
        except Empty:
            piece = None
        if piece is None:
            to, size = ctypes.c_void_p(copy.ctypes.data), ctypes.c_size_t(size_bytes)
            self._driver.call("cuMemcpyDtoH_v2", to, ctypes.c_uint64(source), size)
            return copy.data.toreadonly()
        # Not put back where a call fails: a copy may still arrive there.
        for start in range(0, size_bytes, PIECE_BYTES):
            part = copy[start : start + PIECE_BYTES]
            to, size = ctypes.c_void_p(piece.memory.ctypes.data), ctypes.c_size_t(part.size)
            self._driver.call("cuMemcpyDtoHAsync_v2", to, ctypes.c_uint64(source + start), size, piece.stream)
            self._driver.call("cuStreamSynchronize", piece.stream)
            np.copyto(part, piece.memory[: part.size])
        self._pieces.put(piece)
        return copy.data.toreadonly()


class CudaLink:
    """Compute thread only, but for `download`. One upload run at a time: `upload` some, then `settle` once."""

    def __init__(self, driver: Driver) -> None:
        """Raises RuntimeError where the driver does not give what is needed."""
        self._staging = _locked_memory(driver, 2 * HALF_BYTES)
        self._downloads = Downloads(driver)
        self._read_host = _kernel("cairn_read_host", ["address", "count"], _READ_HOST)
        self._tell_address = _kernel("cairn_tell_address", ["inp"], _TELL_ADDRESS)
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="cairn-upload")
        self._lock = Lock()
        self._half, self._used = 0, 0
        self._due: list[tuple[NDArray[Any], NDArray[Any]]] = []  # what this half is still to be filled with
        self._made: list[mx.array] = []
        self._moving: list[mx.array] = []  # out of the other half

    def upload(self, pieces: Sequence[NDArray[Any]], axis: int, dtype: mx.Dtype) -> mx.array:
        """The pieces joined on `axis`, as an array that owns its memory; HALF_BYTES at most, and of one dtype as wide
        as `dtype`. Lazy, and not to be evaluated before `settle`: until then its bytes may not have been read."""
        shape = list(pieces[0].shape)
        shape[axis] = sum(piece.shape[axis] for piece in pieces)
        size = sum(piece.nbytes for piece in pieces)
        if size == 0:
            return mx.zeros(shape, dtype)
        padded = -(-size // _ALIGNMENT) * _ALIGNMENT
        start = self._reserve(padded)
        joined = self._staging[start : start + size].view(pieces[0].dtype).reshape(shape)
        self._due += zip(_cut(joined, [piece.shape[axis] for piece in pieces], axis), pieces, strict=True)
        moved = self._run_read_host(self._staging.ctypes.data + start, padded)
        self._made.append(moved)
        return mx.reshape(moved[:size].view(dtype), shape)

    def settle(self) -> None:
        """Wait until every upload so far is in device memory. What failed then is forgotten: it would fail all later
        ones as well."""
        try:
            self._send()
            evaluate([*self._made, *self._moving])
        finally:
            self._due, self._made, self._moving, self._used = [], [], [], 0

    def address_of(self, array: mx.array) -> mx.array:
        """uint64 [1], lazy: where a contiguous array lies, known once it is computed. It stays there for its life,
        unless it is read on the host."""
        return self._tell_address(
            inputs=[array.view(mx.uint8)],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            output_shapes=[(1,)],
            output_dtypes=[mx.uint64],
        )[0]

    def download(self, address: mx.array, size_bytes: int) -> memoryview:
        """A flat, read-only copy of the bytes of an array that the caller keeps alive, given its queued `address_of`.
        Waits for it. Any thread; holds no lock of the interpreter meanwhile."""
        with self._lock:  # two threads must not wait for one array at a time
            source = cast(int, address.item())
        return self._downloads.copy_out(source, size_bytes)

    def _reserve(self, size_bytes: int) -> int:
        """Offset of free staging bytes; changes halves when this one is full."""
        if self._used + size_bytes > HALF_BYTES:
            self._send()
            evaluate(self._moving)
            self._moving, self._made = self._made, []
            self._half, self._used = 1 - self._half, 0
        start = self._half * HALF_BYTES + self._used
        self._used += size_bytes
        return start

    def _send(self) -> None:
        """Fill this half and queue what is made of it. The threads would only wait for this one's interpreter lock if
        they began earlier."""
        due, self._due = self._due, []
        shares = [due[first::_NUM_THREADS] for first in range(min(_NUM_THREADS, len(due)))]
        for future in wait([self._threads.submit(_copy, share) for share in shares]).done:
            future.result()
        evaluate_soon(self._made)

    def _run_read_host(self, address: int, size_bytes: int) -> mx.array:
        count = size_bytes // _ALIGNMENT
        return self._read_host(
            inputs=[mx.array([address], dtype=mx.uint64), mx.array([count], dtype=mx.uint64)],
            grid=(min(_NUM_GPU_THREADS, -(-count // 256) * 256), 1, 1),
            threadgroup=(256, 1, 1),
            output_shapes=[(size_bytes,)],
            output_dtypes=[mx.uint8],
        )[0]


def _cut(joined: NDArray[Any], lengths: Sequence[int], axis: int) -> list[NDArray[Any]]:
    """Consecutive views of these lengths along `axis`."""
    before = (slice(None),) * (axis % joined.ndim)
    ends = list(accumulate(lengths))
    return [joined[(*before, slice(end - length, end))] for length, end in zip(lengths, ends, strict=True)]


def _copy(parts: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> None:
    for target, source in parts:
        np.copyto(target, source)


def _kernel(name: str, inputs: list[str], source: str) -> Callable[..., list[mx.array]]:
    fast: Any = mx.fast
    return cast(
        Callable[..., list[mx.array]],
        fast.cuda_kernel(
            name=name, input_names=inputs, output_names=["out"], source=source, ensure_row_contiguous=False
        ),
    )


@cache
def find_link() -> CudaLink | None:
    """The link of this process, proven by a round trip; None where there is none. Compute thread only."""
    if not has_cuda():
        return None
    try:
        link = CudaLink(CudaDriver())
        sent = np.arange(1 << 16, dtype=np.uint16).reshape(2, -1, 64)
        there = link.upload([sent[:, :7], sent[:, 7:]], 1, mx.uint16)
        link.settle()
        address = link.address_of(there)
        evaluate([there, address])
        return link if bytes(link.download(address, sent.nbytes)) == sent.tobytes() else None
    except (OSError, RuntimeError, AttributeError, ValueError):
        return None
