"""Landing: state that came from a store becomes device memory before anybody waits for it.

A payload from the host is joined and copied on the compute thread at every restore, while all streams stand still. On
an accelerator that shares memory with the host, the threads that read the store can do the copying instead, once; from
then on restoring such a payload is the device's own work. Small tensors share a buffer, because Metal bounds their
number (about half a million).
"""

from collections.abc import Sequence
from itertools import groupby

import mlx.core as mx
import numpy as np

from adapters.mlx.arrays import from_numpy
from adapters.mlx.payload import DevicePayload, Place, host_array
from domain.payload import StatePayload, TensorSpec

PACK_BYTES = 1 << 19
"""Tensors are joined up to this size; a larger one gets a buffer of its own. Copying one holds the interpreter for less
than a tenth of a millisecond."""


def pays_to_land() -> bool:
    """Where the device shares the host's memory and joins tensors by itself. A CPU joins them where they are, and over
    a CUDA link they cross once, joined."""
    return mx.metal.is_available()


def land(payload: StatePayload) -> DevicePayload:
    """A copy in device memory; what is there already, as it is. Any thread: it needs no stream, because nothing is
    computed."""
    if isinstance(payload, DevicePayload):  # it still waits for the store
        return payload
    specs, buffers = payload.specs, payload.buffers()
    packs: list[mx.array] = []
    places: list[Place] = []
    for run in runs(specs, PACK_BYTES):
        spec = specs[run[0]]
        if not spec.size_bytes:
            places += [Place(None, 0)] * len(run)
            continue
        tensors = [host_array(spec, buffers[index]) for index in run]
        places += [Place(len(packs), order * spec.shape[0]) for order in range(len(run))]
        packs.append(from_numpy(tensors[0] if len(run) == 1 else np.concatenate(tensors)))
    return DevicePayload(specs, tuple(packs), tuple(places))


def runs(specs: Sequence[TensorSpec], pack_bytes: int) -> list[list[int]]:
    """Indices of consecutive tensors of one spec, as many together as fit in so many bytes."""
    found: list[list[int]] = []
    for spec, indices in groupby(range(len(specs)), key=lambda index: specs[index]):
        run, length = list(indices), max(1, pack_bytes // max(1, spec.size_bytes))
        found += [run[start : start + length] for start in range(0, len(run), length)]
    return found


__all__ = ("PACK_BYTES", "land", "pays_to_land", "runs")
