"""The memory of each state group, read off the shapes of a model's caches at two lengths. Nothing is computed."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from adapters.mlx.caches.classes import lib, traits_of
from adapters.mlx.caches.layout import Caches, leaf_at, new_caches
from adapters.mlx.runtime.arrays import arrays_in
from domain.memory.shape import StateCost
from domain.models.state_layout import LeafPath, StateKind, StateLayout

_STEP = 256
"""Tokens by which mlx-lm's caches grow."""
_SHORT, _LONG = 32, 64


def lazy_caches(network: Any, num_tokens: int) -> Caches:
    """Caches after a prompt of zeros, as far as their shapes go."""
    caches = new_caches(network)
    network(mx.zeros((1, num_tokens), dtype=mx.uint32), cache=caches)
    return caches


def state_costs(layout: StateLayout, network: Any) -> tuple[StateCost, ...]:
    """One a state group, in the layout's order, and one for the leaves that belong to none, as if they kept all."""
    short, long = lazy_caches(network, _SHORT), lazy_caches(network, _LONG)
    costs = [_group_cost(short, long, group.leaves, group.window) for group in layout.groups]
    others = [path for path, layer in layout.leaves() if layer.kind is StateKind.UNSUPPORTED]
    return (*costs, *([_group_cost(short, long, others, None)] if others else []))


def _group_cost(short: Caches, long: Caches, leaves: Sequence[LeafPath], window: int | None) -> StateCost:
    per_token = fixed = 0
    for path in leaves:
        traits = traits_of(leaf_at(long, path))
        before, after = _arrays(leaf_at(short, path)), _arrays(leaf_at(long, path))
        if traits is not None and traits.kind is not StateKind.RECURRENT:
            per_token += sum(array.nbytes // array.shape[-2] for array in after)  # tokens are on the axis before last
            continue
        grown = max(0, _size(after) - _size(before)) // (_LONG - _SHORT)
        per_token += grown
        fixed += _size(after) - grown * _LONG
    if window is not None and any(type(leaf_at(long, path)) is lib.ChunkedKVCache for path in leaves):
        window += _STEP  # its buffer grows by whole steps beyond the window, a rotating one does not
    return StateCost(per_token, window, fixed, _STEP if per_token else 1)


def _arrays(cache: Any) -> list[mx.array]:
    traits = traits_of(cache)
    if traits is None:
        return arrays_in(getattr(cache, "state", ()))
    return [tensor for tensor in traits.tensors(cache) if tensor is not None]


def _size(arrays: Sequence[mx.array]) -> int:
    return sum(array.nbytes for array in arrays)
