"""Upload: state that came from a store crosses to an accelerator with memory of its own, while more is being read.

Done at once when a prompt's whole prefix has been read, it would hold all streams up for as long as the bus takes, and
keep all of it in host memory until then. Read by read, in between steps, it takes the time that reading takes anyway,
and what is left of restoring is the device's own work. Planes cross as they are stored and are merged there, which
saves the host a third of decoding.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from adapters.mlx.arrays import from_numpy
from adapters.mlx.cuda_link import HALF_BYTES, CudaLink, find_link
from adapters.mlx.landing import runs
from adapters.mlx.payload import DevicePayload, Place, evaluate_copies, host_array, mlx_dtype
from domain.payload import HostPayload, SplitPayload, StatePayload, TensorSpec

PACK_BYTES = HALF_BYTES // 4
"""Tensors cross together up to this size: large enough for the bus, small beside the staging memory."""


def upload(payloads: Sequence[StatePayload]) -> list[StatePayload]:
    """Each in device memory; what is there already, as it is. Without a link it stays in host memory, merged, and MLX
    moves it at restore. Compute thread only."""
    link = find_link()
    if link is None:
        return [_merged_here(payload) for payload in payloads]
    try:
        there = [payload if isinstance(payload, DevicePayload) else _sent(link, payload) for payload in payloads]
    finally:
        link.settle()
    evaluate_copies(there)
    return [*there]


def merged_bfloat16(exponent: mx.array, rest: mx.array) -> mx.array:
    """The numbers of two planes of bytes (`SplitPayload`), bit for bit; any shape."""
    wide = rest.astype(mx.uint16)
    sign, mantissa = mx.left_shift(wide & 0x80, 8), wide & 0x7F
    return (sign | mx.left_shift(exponent.astype(mx.uint16), 7) | mantissa).view(mx.bfloat16)


def _merged_here(payload: StatePayload) -> StatePayload:
    return HostPayload(payload.specs, payload.buffers()) if isinstance(payload, SplitPayload) else payload


def _sent(link: CudaLink, payload: StatePayload) -> DevicePayload:
    """Lazy, and not to be evaluated before the link has settled."""
    specs = payload.specs
    packs: list[mx.array] = []
    places: list[Place] = []
    at = 0
    buffers = () if isinstance(payload, SplitPayload) else payload.buffers()
    for run in runs(specs, PACK_BYTES):
        spec = specs[run[0]]
        if not spec.size_bytes:
            places += [Place(None, 0)] * len(run)
            continue
        if isinstance(payload, SplitPayload):
            count = len(run) * spec.size_bytes // 2
            packs.append(_sent_planes(link, payload, at, at + count, (len(run) * spec.shape[0], *spec.shape[1:])))
            at += count
        else:
            packs.append(_sent_tensors(link, spec, [buffers[index] for index in run]))
        places += [Place(len(packs) - 1, order * spec.shape[0]) for order in range(len(run))]
    return DevicePayload(specs, tuple(packs), tuple(places))


def _sent_planes(link: CudaLink, payload: SplitPayload, start: int, stop: int, shape: tuple[int, ...]) -> mx.array:
    """Numbers [start, stop) of all its tensors."""
    planes = [np.frombuffer(plane, np.uint8)[start:stop] for plane in (payload.exponent, payload.rest)]
    if any(plane.nbytes > HALF_BYTES for plane in planes):
        exponent, rest = (from_numpy(plane) for plane in planes)
    else:
        exponent, rest = (link.upload([plane], 0, mx.uint8) for plane in planes)
    return mx.reshape(merged_bfloat16(exponent, rest), shape)


def _sent_tensors(link: CudaLink, spec: TensorSpec, data: Sequence[memoryview]) -> mx.array:
    tensors = [host_array(spec, one) for one in data]
    if tensors[0].nbytes > HALF_BYTES:
        return from_numpy(tensors[0]).view(mlx_dtype(spec.dtype))
    return link.upload(tensors, 0, mlx_dtype(spec.dtype))


__all__ = ("PACK_BYTES", "merged_bfloat16", "upload")
