"""The bus between host memory and an NVIDIA GPU, used at its own speed.

MLX moves an array in or out through managed memory, page by page: 1 to 1.5 GB/s where the bus carries 50, and an array
that was read once stays in host memory. Here a kernel reads page-locked memory, where state was decoded to
(`locked_memory`) or staging that a few threads fill, and the driver copies out from where an evaluated array lies,
which leaves it there (`cuda_download`). All are exact copies.

`find_link` gives None wherever there is no such GPU, or where a round trip does not return what was sent; callers
then let MLX move the bytes.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import accumulate
from math import prod
from threading import Lock
from typing import Any, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.arrays import evaluate, evaluate_soon
from adapters.mlx.cuda_download import Downloads
from adapters.mlx.cuda_driver import MAPPED, PORTABLE, CudaDriver
from adapters.mlx.device import has_cuda
from adapters.mlx.locked_memory import LOCKED

HALF_BYTES = 64 * 2**20
"""Staging is two of these: one is filled while the bus empties the other."""

_NUM_THREADS = min(8, (os.cpu_count() or 2) // 2)
_ALIGNMENT = 16
_NUM_GPU_THREADS = 132 * 1024

_READ_HOST = """
auto grid = cooperative_groups::this_grid();
const uint4* from = reinterpret_cast<const uint4*>(address[0]);
uint4* to = reinterpret_cast<uint4*>(out);
for (uint64_t i = grid.thread_rank(); i < count[0]; i += grid.size()) to[i] = from[i];
"""
_TELL_ADDRESS = "out[0] = reinterpret_cast<uint64_t>(inp);"


class CudaLink:
    """Compute thread only, but for `download`. One upload run at a time: `upload` some, then `settle` once."""

    def __init__(self) -> None:
        """Raises OSError or RuntimeError where the driver does not give what is needed."""
        driver = CudaDriver()
        staging, size = ctypes.c_void_p(), 2 * HALF_BYTES
        driver.call("cuMemHostAlloc", ctypes.byref(staging), ctypes.c_size_t(size), PORTABLE | MAPPED)
        self._address = cast(int, staging.value)
        mapped: Any = (ctypes.c_uint8 * size).from_address(self._address)
        self._staging: NDArray[np.uint8] = np.frombuffer(mapped, dtype=np.uint8)
        self._read_host = _kernel("cairn_read_host", ["address", "count"], _READ_HOST)
        self._tell_address = _kernel("cairn_tell_address", ["inp"], _TELL_ADDRESS)
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="cairn-upload")
        self._downloads = Downloads(driver)
        self._lock = Lock()
        self._half, self._used = 0, 0
        self._due: list[tuple[NDArray[Any], NDArray[Any]]] = []  # what this half is still to be filled with
        self._read_in_place: list[NDArray[Any]] = []  # not to be used again before `settle`
        self.reads_in_place = True
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
        is_locked = self.reads_in_place and LOCKED.holds(pieces[0].ctypes.data, pieces[0].nbytes)
        address = joined_at(pieces, axis) if is_locked else None
        if address is not None and LOCKED.holds(address, padded):
            self._read_in_place += pieces
        else:
            start = self._reserve(padded)
            joined = self._staging[start : start + size].view(pieces[0].dtype).reshape(shape)
            self._due += zip(_cut(joined, [piece.shape[axis] for piece in pieces], axis), pieces, strict=True)
            address = self._address + start
        moved = self._run_read_host(address, padded)
        self._made.append(moved)
        return mx.reshape(moved[:size].view(dtype), shape)

    def settle(self) -> None:
        """Wait until every upload so far is in device memory. What failed then is forgotten: it would fail all later
        ones as well."""
        try:
            self._send()
            evaluate([*self._made, *self._moving])
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Forget every upload so far."""
        self._due, self._made, self._moving, self._used = [], [], [], 0
        self._read_in_place = []

    def address_of(self, array: mx.array) -> mx.array:
        """uint64 [1], lazy: where a contiguous array lies, known once it is computed. It stays there for its life,
        unless somebody reads it on the host."""
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


def joined_at(pieces: Sequence[NDArray[Any]], axis: int) -> int | None:
    """The address where the pieces lie joined on `axis` already, if they do and a kernel can read them there."""
    if any(not piece.flags.c_contiguous or prod(piece.shape[: axis % piece.ndim]) != 1 for piece in pieces):
        return None
    starts = [piece.ctypes.data for piece in pieces]
    ends = [start + piece.nbytes for start, piece in zip(starts, pieces, strict=True)]
    return starts[0] if starts[0] % _ALIGNMENT == 0 and starts[1:] == ends[:-1] else None


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
        link = CudaLink()
        sent = np.arange(1 << 16, dtype=np.uint16).reshape(2, -1, 64)
        there = link.upload([sent[:, :7], sent[:, 7:]], 1, mx.uint16)
        link.settle()
        address = link.address_of(there)
        evaluate([there, address])
        if bytes(link.download(address, sent.nbytes)) != sent.tobytes():
            return None
    except (OSError, RuntimeError, AttributeError, ValueError):
        return None
    link.reads_in_place = _does_read_in_place(link)
    return link


def _does_read_in_place(link: CudaLink) -> bool:
    """Proven by a round trip as well."""
    try:
        sent = LOCKED.allocate(1 << 16)
        sent[:] = np.arange(sent.size, dtype=np.uint32).astype(np.uint8)
        there = link.upload([sent[16:5008], sent[5008:10000]], 0, mx.uint8)
        link.settle()
        address = link.address_of(there)
        evaluate([there, address])
        return bytes(link.download(address, there.nbytes)) == sent[16:10000].tobytes()
    except (OSError, RuntimeError, AttributeError, ValueError):
        link.abandon()
        return False


__all__ = ("HALF_BYTES", "CudaLink", "find_link", "joined_at")
