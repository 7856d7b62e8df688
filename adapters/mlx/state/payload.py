"""State on its way out of the cache: evaluated copies in device memory, readable as bytes from any thread.

Tensors of equal dtype and shape are packed into one array along a new leading run of rows, so that a block of a
forty-layer model is one device buffer and not eighty (Metal bounds the number of buffers, and copying to the host is
faster in large pieces). A pack is always the result of a copying operation: nothing here shares memory with a cache.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.runtime.arrays import byte_view, evaluate, evaluate_soon, from_numpy
from adapters.mlx.state.cuda_link import HALF_BYTES, CudaLink, find_link
from domain.prefix.payload import StatePayload, TensorSpec

ABSENT = TensorSpec("bool", (0,))
"""Stands for a slot the model left empty (None), so that restoring leaves it empty too. No real state has rank one."""

PACK_BYTES = 1 << 19
"""Tensors that are landed are joined up to this size (Metal bounds the number of buffers); a larger one gets a buffer
of its own. Copying one holds the interpreter for less than a tenth of a millisecond."""

_DTYPES: dict[str, mx.Dtype] = {
    "bool": mx.bool_, "uint8": mx.uint8, "int8": mx.int8, "uint16": mx.uint16, "int16": mx.int16,
    "float16": mx.float16, "bfloat16": mx.bfloat16, "uint32": mx.uint32, "int32": mx.int32, "float32": mx.float32,
    "uint64": mx.uint64, "int64": mx.int64, "float64": mx.float64, "complex64": mx.complex64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def mlx_dtype(name: str) -> mx.Dtype:
    """The MLX dtype of a TensorSpec's dtype name. Raises KeyError."""
    return _DTYPES[name]


def dtype_name(dtype: mx.Dtype) -> str:
    """The TensorSpec name of an MLX dtype."""
    return _NAMES[dtype]


def spec_of(array: mx.array | None) -> TensorSpec:
    """The spec of a state tensor; ABSENT for None."""
    return ABSENT if array is None else TensorSpec(dtype_name(array.dtype), tuple(array.shape))


def host_array(spec: TensorSpec, data: memoryview) -> NDArray[Any]:
    """A tensor's bytes as numpy sees them, not copied; numpy has no bfloat16, so those stay words."""
    return np.frombuffer(data, "uint16" if spec.dtype == "bfloat16" else spec.dtype).reshape(spec.shape)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor: `pack` (None: it has no bytes) and the first of its rows on the pack's leading axis."""

    pack: int | None
    row: int


class DevicePayload:
    """A StatePayload whose tensors stay where they were computed, or where they were landed; bfloat16 that was landed
    is kept as uint16 words.

    Made on the compute thread, and `evaluate_copies` before it leaves it. `buffers` needs no MLX stream and is safe on
    any thread: it reads evaluated packs through the buffer protocol, or, where there is a CUDA link, waits for them and
    copies them out, so that they stay in device memory.
    """

    __slots__ = ("_addresses", "_link", "_packs", "_places", "_specs")

    def __init__(self, specs: tuple[TensorSpec, ...], packs: tuple[mx.array, ...], places: tuple[Place, ...]) -> None:
        self._specs = specs
        self._packs = packs
        self._places = places
        self._link = find_link()
        self._addresses = () if self._link is None else tuple(self._link.address_of(pack) for pack in packs)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return self._specs

    @property
    def size_bytes(self) -> int:
        return sum(spec.size_bytes for spec in self._specs)

    @property
    def packs(self) -> tuple[mx.array, ...]:
        """The device arrays behind the payload; for memory accounting."""
        return self._packs

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """All that must be evaluated before `buffers` can be read."""
        return self._packs + self._addresses

    def buffers(self) -> tuple[memoryview, ...]:
        flat = self._copied_out() if self._addresses else [byte_view(pack) for pack in self._packs]
        return tuple(
            memoryview(b"") if place.pack is None else _rows(flat[place.pack], self._packs[place.pack], place, spec)
            for spec, place in zip(self._specs, self._places, strict=True)
        )

    def _copied_out(self) -> list[memoryview]:
        assert self._link is not None
        pairs = zip(self._addresses, self._packs, strict=True)
        return [self._link.download(address, pack.nbytes) for address, pack in pairs]

    def tensors(self) -> tuple[mx.array | None, ...]:
        """The tensors on the device, None where a slot was empty. Compute thread only: slicing is an operation."""
        return tuple(self._tensor(spec, place) for spec, place in zip(self._specs, self._places, strict=True))

    def _tensor(self, spec: TensorSpec, place: Place) -> mx.array | None:
        if place.pack is None:
            return None if spec == ABSENT else mx.zeros(spec.shape, mlx_dtype(spec.dtype))
        rows, dtype = self._packs[place.pack][place.row : place.row + spec.shape[0]], mlx_dtype(spec.dtype)
        return rows if rows.dtype == dtype else rows.view(dtype)


def _rows(flat: memoryview, pack: mx.array, place: Place, spec: TensorSpec) -> memoryview:
    start = place.row * (len(flat) // pack.shape[0])
    return flat[start : start + spec.size_bytes]


def pack(tensors: Sequence[mx.array | None]) -> DevicePayload:
    """Copy tensors (rank two or more, usually with one leading row) into packs. Lazy: evaluate before use."""
    return DevicePayload(*_gather(tensors))


def pack_blocks(tensors: Sequence[mx.array | None], lengths: Sequence[int]) -> list[DevicePayload]:
    """Payloads as `pack` makes them for each run of `lengths` tokens of tensors [1, heads, tokens, dim], in far fewer
    copies: each tensor is copied once into a pack of all the tokens, and each block is cut out of that in one piece."""
    specs, wide, places = _gather(tensors)
    payloads: list[DevicePayload] = []
    start = 0
    for length in lengths:
        packs = tuple(_copy([found[..., start : start + length, :]]) for found in wide)
        payloads.append(DevicePayload(tuple(_of_length(spec, length) for spec in specs), packs, places))
        start += length
    return payloads


def evaluate_copies(payloads: Iterable[DevicePayload]) -> None:
    """Compute these before any later forward pass can touch what they were copied from.

    Only queued where reading a payload waits by itself; else finished, because an array that another thread may read
    must not be in flight.
    """
    arrays = [array for payload in payloads for array in payload.arrays]
    if find_link() is None:
        evaluate(arrays)
    else:
        evaluate_soon(arrays)


def _of_length(spec: TensorSpec, length: int) -> TensorSpec:
    return spec if spec == ABSENT else TensorSpec(spec.dtype, (*spec.shape[:-2], length, spec.shape[-1]))


def _gather(
    tensors: Sequence[mx.array | None],
) -> tuple[tuple[TensorSpec, ...], tuple[mx.array, ...], tuple[Place, ...]]:
    """Specs, packs and places."""
    specs = tuple(spec_of(tensor) for tensor in tensors)
    members: dict[TensorSpec, list[mx.array]] = {}
    order: dict[TensorSpec, int] = {}
    places: list[Place] = []
    for spec, tensor in zip(specs, tensors, strict=True):
        if tensor is None or spec.size_bytes == 0:
            places.append(Place(None, 0))
            continue
        rows = members.setdefault(spec, [])
        places.append(Place(order.setdefault(spec, len(order)), len(rows) * spec.shape[0]))
        rows.append(tensor)
    return specs, tuple(_copy(members[spec]) for spec in order), tuple(places)


def _copy(tensors: list[mx.array]) -> mx.array:
    """Concatenate into fresh memory. A lone tensor gets an empty companion: concatenating one array returns it."""
    return mx.concatenate(tensors if len(tensors) > 1 else [tensors[0], tensors[0][:0]], axis=0)


# ---- landing -------------------------------------------------------------------------------------------------------


def land(payloads: Sequence[StatePayload]) -> list[StatePayload]:
    """Copies in device memory of state that came from a store; what is there already, as it is. Otherwise it would be
    joined and copied at restore, all of a prefix at once, while all streams wait. Any thread, since nothing is
    computed; where there is a CUDA link, the compute thread only, and the more at a time the better it is used."""
    link = find_link()
    landed: list[StatePayload] = []
    try:
        for payload in payloads:  # what still waits for the store is on the device
            landed.append(payload if isinstance(payload, DevicePayload) else _landed(payload, link))
    finally:
        if link is not None:
            link.settle()
    if link is not None:
        evaluate_copies(one for one in landed if isinstance(one, DevicePayload))
    return landed


def _landed(payload: StatePayload, link: CudaLink | None) -> DevicePayload:
    specs, buffers = payload.specs, payload.buffers()
    packs: list[mx.array] = []
    places: list[Place] = []
    for run in _runs(specs, PACK_BYTES if link is None else HALF_BYTES // 4):
        spec = specs[run[0]]
        if not spec.size_bytes:
            places += [Place(None, 0)] * len(run)
            continue
        tensors = [host_array(spec, buffers[index]) for index in run]
        places += [Place(len(packs), order * spec.shape[0]) for order in range(len(run))]
        if link is None or spec.size_bytes > HALF_BYTES:
            packs.append(from_numpy(tensors[0] if len(run) == 1 else np.concatenate(tensors)))
        else:
            packs.append(link.upload(tensors, 0, mlx_dtype(spec.dtype)))
    return DevicePayload(specs, tuple(packs), tuple(places))


def _runs(specs: Sequence[TensorSpec], pack_bytes: int) -> list[list[int]]:
    """Indices of consecutive tensors of one spec, as many together as fit in so many bytes."""
    found: list[list[int]] = []
    for spec, indices in groupby(range(len(specs)), key=lambda index: specs[index]):
        run, length = list(indices), max(1, pack_bytes // max(1, spec.size_bytes))
        found += [run[start : start + length] for start in range(0, len(run), length)]
    return found
