"""Capture: one sequence's caches, copied out as payloads by state group.

A payload's tensors follow the group's leaves in layout order, each leaf with a fixed number of tensors. All copies of
one call are evaluated together, before a later forward pass can change the caches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from adapters.mlx.caches.leaves import (
    Caches,
    leaf_at,
    oldest_held,
    recurrent_tensors,
    token_slices,
    token_views,
    trailing_reach,
)
from adapters.mlx.runtime.device import on_cpu
from adapters.mlx.state.payload import DevicePayload, evaluate_copies, pack, pack_blocks
from domain.ids import GroupIndex
from domain.models.state_layout import HitPolicy, StateGroup, StateLayout
from domain.prefix.record import GroupPayloads, StatePayload

MAX_RUN = 16
"""The most spans copied together on a GPU: their common copy is extra memory for a moment. On a CPU each is copied by
itself, because the bytes cost time there and not the number of copies."""


@dataclass(frozen=True, slots=True)
class HeldRow:
    """One sequence's state: row `row` of `caches`, covering `num_tokens` tokens."""

    caches: Caches
    row: int
    num_tokens: int


def copy_blocks(layout: StateLayout, held: HeldRow, spans: Sequence[tuple[int, int]]) -> tuple[GroupPayloads, ...]:
    """Copies token spans [start, end) of every ALL and TRAILING group; a TRAILING group that lost one is left out. Its
    tensors hold the trailing part of the span that its window can reach from the span's end."""
    copies: list[dict[GroupIndex, DevicePayload]] = [{} for _ in spans]
    for group in layout.groups:
        if group.policy is HitPolicy.SNAPSHOT:
            continue
        for found, payload in zip(copies, _copy_spans(group, held, spans), strict=True):
            if payload is not None:
                found[group.index] = payload
    evaluate_copies(payload for found in copies for payload in found.values())
    return tuple(dict[GroupIndex, StatePayload](found) for found in copies)


def copy_snapshot(layout: StateLayout, held: HeldRow, block_start: int) -> GroupPayloads:
    """Copies the recurrent state, and the tokens from `block_start` to the current position of the other groups."""
    found: dict[GroupIndex, DevicePayload] = {}
    for group in layout.groups:
        if group.policy is HitPolicy.SNAPSHOT:
            found[group.index] = _copy_recurrent(group, held)
        elif block_start < held.num_tokens:
            payload = _copy_tokens(group, held, block_start, held.num_tokens)
            if payload is not None:
                found[group.index] = payload
    evaluate_copies(found.values())
    return dict[GroupIndex, StatePayload](found)


def _copy_spans(group: StateGroup, held: HeldRow, spans: Sequence[tuple[int, int]]) -> list[DevicePayload | None]:
    """One payload a span. Adjacent spans, such as those of a chunk, are copied together if the group still holds them
    whole and its window reaches over each of them."""
    found: list[DevicePayload | None] = []
    for run in _runs(group, held, spans):
        if len(run) == 1:
            found.append(_copy_tokens(group, held, *run[0]))
            continue
        tensors: list[mx.array | None] = []
        for path in group.leaves:
            leaf = leaf_at(held.caches, path)
            views = token_views(leaf, held.row, held.num_tokens, run[0][0], run[-1][1])
            assert views is not None
            tensors += views
        found += pack_blocks(tensors, [end - start for start, end in run])
    return found


def _runs(group: StateGroup, held: HeldRow, spans: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The spans in order, as runs of adjacent whole ones and single others."""
    caches = [leaf_at(held.caches, path) for path in group.leaves]
    oldest = max(oldest_held(cache, held.num_tokens) for cache in caches)
    reaches = [reach for cache in caches if (reach := trailing_reach(cache)) is not None]
    longest = 1 if on_cpu() else MAX_RUN
    runs: list[list[tuple[int, int]]] = []
    was_whole = False
    for start, end in spans:
        is_whole = start >= oldest and end - start <= min(reaches, default=end)
        if is_whole and was_whole and runs[-1][-1][1] == start and len(runs[-1]) < longest:
            runs[-1].append((start, end))
        else:
            runs.append([(start, end)])
        was_whole = is_whole
    return runs


def _copy_tokens(group: StateGroup, held: HeldRow, start: int, end: int) -> DevicePayload | None:
    tensors: list[mx.array | None] = []
    for path in group.leaves:
        slices = token_slices(leaf_at(held.caches, path), held.row, held.num_tokens, start, end)
        if slices is None:
            return None
        tensors += slices
    return pack(tensors)


def _copy_recurrent(group: StateGroup, held: HeldRow) -> DevicePayload:
    tensors: list[mx.array | None] = []
    for path in group.leaves:
        tensors += recurrent_tensors(leaf_at(held.caches, path), held.row)
    return pack(tensors)
