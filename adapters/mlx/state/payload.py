"""State on its way out of the caches: evaluated copies in device memory, readable as bytes from any thread.

Tensors of equal dtype and shape are packed into one array along the first axis, so that a block of a forty-layer model
is one device buffer instead of eighty (Metal limits the number of buffers, and copies to the host are faster in large
pieces). A pack is always the result of a copy: it shares no memory with a cache.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.cuda.link import PIECE_BYTES, find_link
from adapters.mlx.runtime.arrays import byte_view, evaluate, evaluate_soon, from_numpy
from application.ports.state_access import StateMisfit
from domain.prefix.record import StatePayload, TensorSpec

ABSENT = TensorSpec("bool", (0,))
"""The spec of a slot that the model left empty (None), so that restoring leaves it empty too. No state has rank one."""

PACK_BYTES = 1 << 19
"""Uploaded tensors are joined up to this size; a larger one gets a buffer of its own. Copying one holds the
interpreter's lock for less than a tenth of a millisecond. Over a CUDA link a pack is up to two pieces instead."""

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
    """A tensor's bytes as a numpy array, not copied. numpy has no bfloat16, so those are uint16. Raises StateMisfit."""
    if data.nbytes != spec.size_bytes:
        raise StateMisfit(f"a tensor of {spec} has {data.nbytes} bytes, expected {spec.size_bytes}")
    return np.frombuffer(data, "uint16" if spec.dtype == "bfloat16" else spec.dtype).reshape(spec.shape)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor: `pack` (None if it has no bytes) and the first of its rows on the pack's first axis."""

    pack: int | None
    row: int


class DevicePayload:
    """A StatePayload whose tensors are in device memory. An uploaded bfloat16 may be kept as uint16.

    Made on the compute thread; call `evaluate_copies` before another thread sees it. `buffers` needs no MLX stream and
    is safe on any thread: it reads evaluated packs through the buffer protocol, or, over a CUDA link, waits for them
    and copies them out, so that they stay in device memory.
    """

    __slots__ = ("_addresses", "_link", "packs", "places", "specs")

    def __init__(self, specs: tuple[TensorSpec, ...], packs: tuple[mx.array, ...], places: tuple[Place, ...]) -> None:
        """`packs`: the device arrays; `places`: of each tensor."""
        self.specs = specs
        self.packs = packs
        self.places = places
        self._link = find_link()
        self._addresses = () if self._link is None else tuple(self._link.address_of(pack) for pack in packs)

    @property
    def size_bytes(self) -> int:
        return sum(spec.size_bytes for spec in self.specs)

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The arrays that must be evaluated before `buffers` is called."""
        return self.packs + self._addresses

    def buffers(self) -> tuple[memoryview, ...]:
        if self._link is None:
            flat = [byte_view(pack) for pack in self.packs]
        else:
            pairs = zip(self._addresses, self.packs, strict=True)
            flat = [self._link.download(address, pack.nbytes) for address, pack in pairs]
        return tuple(
            memoryview(b"") if place.pack is None else _rows(flat[place.pack], self.packs[place.pack], place, spec)
            for spec, place in zip(self.specs, self.places, strict=True)
        )

    def tensors(self) -> tuple[mx.array | None, ...]:
        """The tensors on the device, None for an empty slot. Compute thread only: slicing is an operation."""
        return tuple(map(self.stacked, range(len(self.specs))))

    def stacked(self, index: int, count: int = 1) -> mx.array | None:
        """`count` tensors from `index` on, which lie side by side in a pack, on the first axis of one array. As
        `tensors`."""
        spec, place = self.specs[index], self.places[index]
        if place.pack is None:
            return None if spec == ABSENT else mx.zeros(spec.shape, mlx_dtype(spec.dtype))
        rows, dtype = self.packs[place.pack][place.row : place.row + count * spec.shape[0]], mlx_dtype(spec.dtype)
        return rows if rows.dtype == dtype else rows.view(dtype)


def _rows(flat: memoryview, pack: mx.array, place: Place, spec: TensorSpec) -> memoryview:
    start = place.row * (len(flat) // pack.shape[0])
    return flat[start : start + spec.size_bytes]


def pack(tensors: Sequence[mx.array | None]) -> DevicePayload:
    """Copies tensors (rank two or more, usually with one leading row) into packs. Lazy: evaluate before use."""
    return DevicePayload(*_gather(tensors))


def pack_blocks(tensors: Sequence[mx.array | None], lengths: Sequence[int]) -> list[DevicePayload]:
    """Payloads as `pack` makes them for consecutive runs of `lengths` tokens of tensors [1, heads, tokens, dim], in far
    fewer copies: each tensor is copied once into a pack of all tokens, and each block is cut out of that in one
    piece."""
    specs, wide, places = _gather(tensors)
    payloads: list[DevicePayload] = []
    start = 0
    for length in lengths:
        packs = tuple(_copy([found[..., start : start + length, :]]) for found in wide)
        payloads.append(DevicePayload(tuple(_of_length(spec, length) for spec in specs), packs, places))
        start += length
    return payloads


def evaluate_copies(payloads: Iterable[DevicePayload]) -> None:
    """Computes the packs before a later forward pass can change what they are copied from. They are only queued where
    reading a payload waits; otherwise finished, since an array that another thread may read must not be in flight."""
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
    """Concatenates into fresh memory. A lone tensor gets an empty companion: concatenating one array returns it."""
    return mx.concatenate(tensors if len(tensors) > 1 else [tensors[0], tensors[0][:0]], axis=0)


# ---- uploading -------------------------------------------------------------------------------------------------------


def upload(payloads: Sequence[StatePayload]) -> list[StatePayload]:
    """Copies state from a store to device memory, so that restoring it later is the device's own work; device payloads
    are returned unchanged. Any thread, since nothing is computed; over a CUDA link the compute thread only, and many
    payloads in one call use the bus best."""
    link = find_link()
    runs = [[] if isinstance(one, DevicePayload) else _runs(one.specs, _pack_bytes()) for one in payloads]
    if link is None:
        return [_uploaded(payload, run, None) for payload, run in zip(payloads, runs, strict=True)]
    targets = [[_empty(payload, run) for run in of_one] for payload, of_one in zip(payloads, runs, strict=True)]
    bytes_of = [() if isinstance(one, DevicePayload) else one.buffers() for one in payloads]
    link.write(
        [
            (target, [buffers[index] for index in run])
            for of_one, arrays, buffers in zip(runs, targets, bytes_of, strict=True)
            for run, target in zip(of_one, arrays, strict=True)
        ]
    )
    uploaded = [_uploaded(payload, run, packs) for payload, run, packs in zip(payloads, runs, targets, strict=True)]
    evaluate_copies(one for one in uploaded if isinstance(one, DevicePayload))
    return uploaded


def _pack_bytes() -> int:
    return PACK_BYTES if find_link() is None else 2 * PIECE_BYTES


def _runs(specs: Sequence[TensorSpec], pack_bytes: int) -> list[list[int]]:
    """Indices of consecutive tensors of one spec with bytes, as many together as fit in a pack."""
    found: list[list[int]] = []
    for spec, indices in groupby(range(len(specs)), key=lambda index: specs[index]):
        run, length = list(indices), max(1, pack_bytes // max(1, spec.size_bytes))
        found += [run[start : start + length] for start in range(0, len(run) if spec.size_bytes else 0, length)]
    return found


def _empty(payload: StatePayload, run: Sequence[int]) -> mx.array:
    spec = payload.specs[run[0]]
    return mx.zeros((len(run) * spec.shape[0], *spec.shape[1:]), mlx_dtype(spec.dtype))


def _uploaded(payload: StatePayload, runs: Sequence[Sequence[int]], packs: Sequence[mx.array] | None) -> StatePayload:
    """`packs`: of the runs, filled already; None to copy the bytes by MLX."""
    if isinstance(payload, DevicePayload):
        return payload
    specs, places = payload.specs, [Place(None, 0)] * len(payload.specs)
    for number, run in enumerate(runs):
        for order, index in enumerate(run):
            places[index] = Place(number, order * specs[index].shape[0])
    if packs is None:
        buffers = payload.buffers()
        parts = [[host_array(specs[index], buffers[index]) for index in run] for run in runs]
        packs = [from_numpy(arrays[0] if len(arrays) == 1 else np.concatenate(arrays)) for arrays in parts]
    return DevicePayload(specs, tuple(packs), tuple(places))
