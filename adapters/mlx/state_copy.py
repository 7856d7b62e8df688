"""Capture: what one sequence's caches hold, copied out as payloads by state group.

A payload's tensors follow the group's leaves in layout order, each leaf giving its own fixed number of tensors.
All copies of one call are evaluated together, before any later forward pass can touch the caches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from adapters.mlx import cache_state
from adapters.mlx.arrays import evaluate
from adapters.mlx.cache_state import Caches
from adapters.mlx.payload import DevicePayload, pack
from domain.ids import GroupIndex
from domain.payload import GroupPayloads, StatePayload
from domain.state_layout import HitPolicy, StateGroup, StateLayout


@dataclass(frozen=True, slots=True)
class HeldRow:
    """One sequence's state: row `row` of `caches`, covering `num_tokens` tokens."""

    caches: Caches
    row: int
    num_tokens: int


def copy_blocks(layout: StateLayout, held: HeldRow, spans: Sequence[tuple[int, int]]) -> tuple[GroupPayloads, ...]:
    """Copies of token spans [start, end) of every ALL and TRAILING group; a TRAILING group that lost one is left out.

    A TRAILING group's tensors hold the trailing part of the span that its window can reach from the span's end.
    """
    token_groups = [group for group in layout.groups if group.policy is not HitPolicy.SNAPSHOT]
    copies: list[dict[GroupIndex, DevicePayload]] = []
    for start, end in spans:
        found: dict[GroupIndex, DevicePayload] = {}
        for group in token_groups:
            payload = _copy_tokens(group, held, start, end)
            if payload is not None:
                found[group.index] = payload
        copies.append(found)
    _evaluate(copies)
    return tuple(dict[GroupIndex, StatePayload](found) for found in copies)


def copy_snapshot(layout: StateLayout, held: HeldRow, block_start: int) -> GroupPayloads:
    """Copies of the recurrent state now, and of the tokens [block_start, now) of the other groups."""
    found: dict[GroupIndex, DevicePayload] = {}
    for group in layout.groups:
        if group.policy is HitPolicy.SNAPSHOT:
            found[group.index] = _copy_recurrent(group, held)
        elif block_start < held.num_tokens:
            payload = _copy_tokens(group, held, block_start, held.num_tokens)
            if payload is not None:
                found[group.index] = payload
    _evaluate([found])
    return dict[GroupIndex, StatePayload](found)


def _copy_tokens(group: StateGroup, held: HeldRow, start: int, end: int) -> DevicePayload | None:
    tensors: list[mx.array | None] = []
    for path in group.leaves:
        slices = cache_state.token_slices(cache_state.leaf(held.caches, path), held.row, held.num_tokens, start, end)
        if slices is None:
            return None
        tensors += slices
    return pack(tensors)


def _copy_recurrent(group: StateGroup, held: HeldRow) -> DevicePayload:
    tensors: list[mx.array | None] = []
    for path in group.leaves:
        tensors += cache_state.recurrent_tensors(cache_state.leaf(held.caches, path), held.row)
    return pack(tensors)


def _evaluate(copies: Sequence[dict[GroupIndex, DevicePayload]]) -> None:
    evaluate(packed for found in copies for payload in found.values() for packed in payload.packs)


__all__ = ("HeldRow", "copy_blocks", "copy_snapshot")
