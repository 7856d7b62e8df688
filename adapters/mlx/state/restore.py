"""Restore: plain caches at a position, rebuilt from captured payloads.

Token groups are put together from the end: the snapshot's slice, then blocks backwards, until the whole prefix (ALL)
or what the window reaches (TRAILING) is covered. Every piece is checked against the shapes the model itself produced
at load, because MLX would compute nonsense from a wrong one. On an accelerator device payloads are joined there; host
bytes are joined on their way there, so that each tensor crosses once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.caches.classes import Tensors
from adapters.mlx.caches.layout import Caches, leaf_at, live_arrays
from adapters.mlx.caches.leaf_state import fill, num_tensors, spare_tokens, trailing_reach
from adapters.mlx.runtime.arrays import evaluate, from_numpy
from adapters.mlx.runtime.device import on_cpu
from adapters.mlx.state.cuda_link import HALF_BYTES, find_link
from adapters.mlx.state.payload import ABSENT, DevicePayload, host_array, mlx_dtype
from domain.errors import ComputeFailed
from domain.models.state_layout import HitPolicy, StateGroup, StateLayout
from domain.prefix.payload import GroupPayloads, StatePayload, TensorSpec

GroupSpecs = dict[int, tuple[TensorSpec, ...]]
"""By group index: the specs of a short capture, the pattern that every payload of the group must follow."""

_TOKEN_AXIS = -2


def restore_caches(
    caches: Caches,
    layout: StateLayout,
    expected: GroupSpecs,
    position: int,
    blocks: Sequence[GroupPayloads],
    snapshot: GroupPayloads,
) -> None:
    """Fill fresh plain `caches` so that they stand at `position`, and evaluate. Raises ComputeFailed on a misfit."""
    try:
        for group in layout.groups:
            if group.policy is HitPolicy.SNAPSHOT:
                tensors: Sequence[mx.array | None] = _recurrent(group, expected, position, snapshot)
            else:
                pieces = [block.get(group.index) for block in blocks]
                tensors = _tokens(group, caches, expected, position, pieces, snapshot.get(group.index))
            _fill_group(caches, group, tensors, position)
    finally:
        link = find_link()
        if link is not None:
            link.settle()
    evaluate(live_arrays(caches))


def _fill_group(caches: Caches, group: StateGroup, tensors: Sequence[mx.array | None], position: int) -> None:
    at = 0
    for path in group.leaves:
        cache = leaf_at(caches, path)
        count = num_tensors(cache)
        fill(cache, tuple(tensors[at : at + count]), position)
        at += count


def _recurrent(group: StateGroup, expected: GroupSpecs, position: int, snapshot: GroupPayloads) -> Tensors:
    payload = snapshot.get(group.index)
    if payload is None:
        raise ComputeFailed(f"no snapshot of state group {group.index} at position {position}")
    _check(group, expected, payload)
    if isinstance(payload, DevicePayload):
        return payload.tensors()
    return tuple(
        None if spec == ABSENT else _moved(host_array(spec, data), spec)
        for spec, data in zip(payload.specs, payload.buffers(), strict=True)
    )


def _tokens(
    group: StateGroup,
    caches: Caches,
    expected: GroupSpecs,
    position: int,
    blocks: Sequence[StatePayload | None],
    snapshot: StatePayload | None,
) -> list[mx.array | None]:
    needed = _by_tensor(group, caches, lambda cache: _needed_tokens(cache, position))
    used: list[StatePayload] = []
    covered = [0] * len(needed)
    tail = [] if snapshot is None else [snapshot]  # none where the position is the end of a block
    for piece in (*tail, *reversed(blocks)):
        if piece is None or all(have >= want for have, want in zip(covered, needed, strict=True)):
            break
        _check(group, expected, piece)
        used.append(piece)
        covered = [
            have + (want if spec == ABSENT else spec.shape[_TOKEN_AXIS])
            for have, want, spec in zip(covered, needed, piece.specs, strict=True)
        ]
    exact = group.policy is HitPolicy.ALL
    if any(have < want or (exact and have != want) for have, want in zip(covered, needed, strict=True) if want):
        raise ComputeFailed(f"state group {group.index} covers {min(covered)} tokens of the {max(needed)} needed")
    used.reverse()
    columns, link = _Columns(used), find_link()
    spare = _by_tensor(group, caches, lambda cache: spare_tokens(cache, position))
    tensors: list[mx.array | None] = []
    for index, want in enumerate(needed):
        tensors.append(columns.join(index, want, spare[index]))
        if link is not None:  # or all parts that crossed would be held beside the tensors that they make
            link.settle()
            evaluate([tensor for tensor in tensors[-1:] if tensor is not None])
    return tensors


def _needed_tokens(cache: Any, position: int) -> int:
    """Trailing tokens that a leaf's tensors need."""
    reach = trailing_reach(cache)
    return position if reach is None else min(position, reach)


def _by_tensor(group: StateGroup, caches: Caches, number_of: Callable[[Any], int]) -> list[int]:
    """A number of each leaf, for each of the group's tensors."""
    found: list[int] = []
    for path in group.leaves:
        cache = leaf_at(caches, path)
        found += [number_of(cache)] * num_tensors(cache)
    return found


class _Columns:
    """The pieces of one group side by side: column `i` is tensor `i` of every piece, oldest first."""

    def __init__(self, pieces: Sequence[StatePayload]) -> None:
        self._specs = [piece.specs for piece in pieces]
        # On a CPU the bytes of both kinds are at hand, and numpy joins them in a fraction of MLX's time.
        on_host = on_cpu()
        kept = [piece if isinstance(piece, DevicePayload) and not on_host else None for piece in pieces]
        self._device = [None if piece is None else piece.tensors() for piece in kept]
        self._host = [piece.buffers() if device is None else None for piece, device in zip(pieces, kept, strict=True)]

    def join(self, index: int, num_tokens: int, num_spare: int) -> mx.array | None:
        """The column's last `num_tokens` tokens, and `num_spare` empty slots, in one fresh array; None where the model
        left it empty."""
        parts: list[mx.array] = []
        run: list[NDArray[Any]] = []
        for specs, device, host in zip(self._specs, self._device, self._host, strict=True):
            spec = specs[index]
            if spec == ABSENT:
                return None
            if host is not None:
                run.append(host_array(spec, host[index]))
                continue
            parts += _flush(run, spec)
            assert device is not None
            tensor = device[index]
            assert tensor is not None
            parts.append(tensor)
        if not self._specs:
            return None
        spec = self._specs[-1][index]
        spare = TensorSpec(spec.dtype, (*spec.shape[:_TOKEN_AXIS], num_spare, *spec.shape[_TOKEN_AXIS + 1 :]))
        is_joined_here = bool(run) and find_link() is None  # empty slots need not cross a link
        if num_spare and is_joined_here:
            run.append(host_array(spare, memoryview(bytes(spare.size_bytes))))
        is_fresh = not parts
        parts += _flush(run, spec)
        if num_spare and not is_joined_here:
            parts.append(mx.zeros(spare.shape, mlx_dtype(spare.dtype)))
        if is_fresh and len(parts) == 1 and parts[0].shape[_TOKEN_AXIS] == num_tokens + num_spare:
            return parts[0]
        return _last_tokens(parts, num_tokens + num_spare)


def _last_tokens(parts: list[mx.array], num_tokens: int) -> mx.array:
    """The last `num_tokens` tokens of consecutive parts, copied: a slice would keep its whole pack alive."""
    surplus = sum(part.shape[_TOKEN_AXIS] for part in parts) - num_tokens
    while surplus >= parts[0].shape[_TOKEN_AXIS] > 0:
        surplus -= parts.pop(0).shape[_TOKEN_AXIS]
    parts[0] = parts[0][..., surplus:, :]
    return mx.concatenate([*parts, parts[0][..., :0, :]], axis=_TOKEN_AXIS)


def _flush(run: list[NDArray[Any]], spec: TensorSpec) -> list[mx.array]:
    """Move consecutive host pieces to the device, joined as far as the link allows, and empty the run."""
    pieces, run[:] = list(run), []
    if not pieces:
        return []
    link = find_link()
    if link is None or any(piece.nbytes > HALF_BYTES for piece in pieces):
        return [_to_device(pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=_TOKEN_AXIS), spec)]
    dtype = mlx_dtype(spec.dtype)
    return [link.upload(part, _TOKEN_AXIS, dtype) for part in _within(pieces, HALF_BYTES)]


def _within(pieces: Sequence[NDArray[Any]], size_bytes: int) -> list[list[NDArray[Any]]]:
    """Consecutive runs of at most `size_bytes` each."""
    runs: list[list[NDArray[Any]]] = []
    used = 0
    for piece in pieces:
        if not runs or used + piece.nbytes > size_bytes:
            runs.append([])
            used = 0
        runs[-1].append(piece)
        used += piece.nbytes
    return runs


def _moved(array: NDArray[Any], spec: TensorSpec) -> mx.array:
    """One tensor of any rank."""
    link = find_link()
    if link is None or array.nbytes > HALF_BYTES:
        return _to_device(array, spec)
    return link.upload([array], 0, mlx_dtype(spec.dtype))


def _to_device(array: NDArray[Any], spec: TensorSpec) -> mx.array:
    moved = from_numpy(array)
    return moved.view(mlx_dtype(spec.dtype)) if spec.dtype == "bfloat16" else moved


def _check(group: StateGroup, expected: GroupSpecs, payload: StatePayload) -> None:
    pattern = expected[group.index]
    if len(payload.specs) != len(pattern):
        raise ComputeFailed(f"state group {group.index} has {len(payload.specs)} tensors, expected {len(pattern)}")
    is_sliced = group.policy is not HitPolicy.SNAPSHOT
    for spec, want in zip(payload.specs, pattern, strict=True):
        if not _fits(spec, want, is_sliced):
            raise ComputeFailed(f"state group {group.index} holds {spec}, which does not fit {want}")


def _fits(spec: TensorSpec, want: TensorSpec, is_sliced: bool) -> bool:
    if not is_sliced:  # a recurrent state may grow, or fill a slot later
        return ABSENT in (spec, want) or (spec.dtype == want.dtype and len(spec.shape) == len(want.shape))
    return spec.dtype == want.dtype and _without_tokens(spec) == _without_tokens(want)


def _without_tokens(spec: TensorSpec) -> tuple[int, ...]:
    return spec.shape[:_TOKEN_AXIS] + spec.shape[_TOKEN_AXIS + 1 :] if len(spec.shape) > 1 else spec.shape
