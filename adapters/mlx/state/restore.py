"""Restore: plain caches at a position, rebuilt from captured payloads.

Token groups are put together from the end: the snapshot's slice, then blocks backwards, until the whole prefix (ALL)
or what the window reaches (TRAILING) is covered. Every piece is checked against the shapes that the model itself
produced at load, because MLX would compute nonsense from a wrong one. On an accelerator, pieces are brought to the
device and joined there; on a CPU numpy joins their bytes in a fraction of MLX's time.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np

from adapters.mlx.caches.classes import Tensors
from adapters.mlx.caches.leaves import Caches, fill, leaf_at, live_arrays, num_tensors, spare_tokens, trailing_reach
from adapters.mlx.runtime.arrays import evaluate, from_numpy
from adapters.mlx.runtime.device import on_cpu
from adapters.mlx.state.payload import ABSENT, DevicePayload, Place, host_array, upload
from application.ports.state_access import StateMisfit
from domain.models.state_layout import HitPolicy, StateGroup, StateLayout
from domain.prefix.record import GroupPayloads, StatePayload, TensorSpec

GroupSpecs = dict[int, tuple[TensorSpec, ...]]
"""The specs of a short capture by group index: the pattern that every payload of the group must follow."""

JOINED_TENSORS = 4
"""Tensors that are joined by one operation a piece on a device: a long prompt has hundreds of pieces, and an operation
takes longer than copying its bytes. Their joint copy is extra memory for a moment."""

_TOKEN_AXIS = -2


def restore_caches(
    caches: Caches,
    layout: StateLayout,
    expected: GroupSpecs,
    position: int,
    blocks: Sequence[GroupPayloads],
    snapshot: GroupPayloads,
) -> None:
    """Fills fresh plain `caches` so that they are at `position`, and evaluates them. Raises StateMisfit if a piece is
    missing or has the wrong shape."""
    for group in layout.groups:
        if group.policy is HitPolicy.SNAPSHOT:
            tensors: Sequence[mx.array | None] = _recurrent(group, expected, position, snapshot)
        else:
            pieces = [block.get(group.index) for block in blocks]
            tensors = _tokens(group, caches, expected, position, pieces, snapshot.get(group.index))
        _fill_group(caches, group, tensors, position)
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
        raise StateMisfit(f"no snapshot of state group {group.index} at position {position}")
    _check(group, expected, payload)
    return cast(DevicePayload, upload([payload])[0]).tensors()


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
    tail = [] if snapshot is None else [snapshot]  # none if the position is the end of a block
    for piece in (*tail, *reversed(blocks)):
        if piece is None or all(have >= want for have, want in zip(covered, needed, strict=True)):
            break
        _check(group, expected, piece)
        used.append(piece)
        covered = [
            want if spec == ABSENT else have + spec.shape[_TOKEN_AXIS]
            for have, want, spec in zip(covered, needed, piece.specs, strict=True)
        ]
    exact = group.policy is HitPolicy.ALL
    if any(have < want or (exact and have != want) for have, want in zip(covered, needed, strict=True) if want):
        raise StateMisfit(f"state group {group.index} covers {min(covered)} tokens of the {max(needed)} needed")
    used.reverse()
    spare = _by_tensor(group, caches, lambda cache: spare_tokens(cache, position))
    join = _join_on_host if on_cpu() else _join_on_device
    return join(used, needed, spare)


def _needed_tokens(cache: Any, position: int) -> int:
    """The number of trailing tokens that a leaf's tensors need."""
    reach = trailing_reach(cache)
    return position if reach is None else min(position, reach)


def _by_tensor(group: StateGroup, caches: Caches, number_of: Callable[[Any], int]) -> list[int]:
    """A number of each leaf, for each of the group's tensors."""
    found: list[int] = []
    for path in group.leaves:
        cache = leaf_at(caches, path)
        found += [number_of(cache)] * num_tensors(cache)
    return found


def _join_on_host(pieces: Sequence[StatePayload], needed: Sequence[int], spare: Sequence[int]) -> list[mx.array | None]:
    """Each tensor's last `needed` tokens and `spare` empty slots, in fresh arrays; None for an empty slot of the
    model. Each tensor of a piece is column `index` of all pieces, oldest first."""
    buffers = [piece.buffers() for piece in pieces]
    tensors: list[mx.array | None] = []
    for index, (num_tokens, num_spare) in enumerate(zip(needed, spare, strict=True)):
        specs = [piece.specs[index] for piece in pieces]
        if not specs or ABSENT in specs:
            tensors.append(None)
            continue
        parts = [host_array(spec, of_piece[index]) for spec, of_piece in zip(specs, buffers, strict=True)]
        _drop_surplus(parts, num_tokens)
        if num_spare:
            shape = (*parts[0].shape[:_TOKEN_AXIS], num_spare, parts[0].shape[-1])
            parts.append(np.zeros(shape, parts[0].dtype))
        tensor = from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=_TOKEN_AXIS))
        tensors.append(tensor.view(mx.bfloat16) if specs[0].dtype == "bfloat16" else tensor)
    return tensors


def _join_on_device(
    pieces: Sequence[StatePayload], needed: Sequence[int], spare: Sequence[int]
) -> list[mx.array | None]:
    """Does the same on the device, to which pieces of the host are copied first."""
    payloads = [cast(DevicePayload, piece) for piece in upload(pieces)]
    tensors: list[mx.array | None] = []
    for index, count in _stacks(payloads, needed, spare):
        parts = [part for payload in payloads if (part := payload.stacked(index, count)) is not None]
        if not parts or len(parts) < len(payloads):
            tensors.append(None)
            continue
        _drop_surplus(parts, needed[index])
        shape = (parts[0].shape[0] // count, *parts[0].shape[1:_TOKEN_AXIS], spare[index], parts[0].shape[-1])
        # Concatenating one array would return a view of it, so the spare slots are a part even if there are none.
        empty = mx.zeros(shape, parts[0].dtype)
        if count == 1:
            tensors.append(mx.concatenate([*parts, empty], axis=_TOKEN_AXIS))
            continue
        joined = mx.concatenate(parts, axis=_TOKEN_AXIS)
        tensors += [mx.concatenate([joined[row : row + 1], empty], axis=_TOKEN_AXIS) for row in range(count)]
    return tensors


def _stacks(
    payloads: Sequence[DevicePayload], needed: Sequence[int], spare: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yields (first tensor, number of tensors) of those that are joined together: they lie side by side in every
    payload, each in one row."""
    layouts = {payload.places for payload in payloads}
    first = 0
    for index in range(1, len(needed) + 1):
        is_joined = (
            index < len(needed)
            and index - first < JOINED_TENSORS
            and (needed[index], spare[index]) == (needed[first], spare[first])
            and all(Place(places[index - 1].pack, places[index - 1].row + 1) == places[index] for places in layouts)
        )
        if not is_joined:
            yield first, index - first
            first = index


def _drop_surplus(parts: list[Any], num_tokens: int) -> None:
    """Cuts consecutive parts, in place, to their last `num_tokens` tokens."""
    surplus = sum(part.shape[_TOKEN_AXIS] for part in parts) - num_tokens
    while surplus >= parts[0].shape[_TOKEN_AXIS] > 0 and len(parts) > 1:
        surplus -= parts.pop(0).shape[_TOKEN_AXIS]
    parts[0] = parts[0][..., surplus:, :]


def _check(group: StateGroup, expected: GroupSpecs, payload: StatePayload) -> None:
    pattern = expected[group.index]
    if len(payload.specs) != len(pattern):
        raise StateMisfit(f"state group {group.index} has {len(payload.specs)} tensors, expected {len(pattern)}")
    is_sliced = group.policy is not HitPolicy.SNAPSHOT
    for spec, want in zip(payload.specs, pattern, strict=True):
        if not _fits(spec, want, is_sliced):
            raise StateMisfit(f"state group {group.index} holds {spec}, which does not match {want}")


def _fits(spec: TensorSpec, want: TensorSpec, is_sliced: bool) -> bool:
    if not is_sliced:  # a recurrent state may grow, or use a slot later
        return ABSENT in (spec, want) or (spec.dtype == want.dtype and len(spec.shape) == len(want.shape))
    return spec.dtype == want.dtype and _without_tokens(spec) == _without_tokens(want)


def _without_tokens(spec: TensorSpec) -> tuple[int, ...]:
    return spec.shape[:_TOKEN_AXIS] + spec.shape[_TOKEN_AXIS + 1 :] if len(spec.shape) > 1 else spec.shape
