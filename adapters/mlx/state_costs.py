"""What each state group of a model costs, read off the caches of a sequence that was just prefilled."""

from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx

from adapters.mlx.arrays import arrays_in
from adapters.mlx.caches.classes import traits_of
from adapters.mlx.caches.layout import Caches, leaf_at
from domain.memory.shape import StateCost
from domain.state_layout import HitPolicy, LeafPath, StateKind, StateLayout

_STEP = 256
"""What mlx-lm's caches grow by."""


def state_costs(layout: StateLayout, caches: Caches, num_tokens: int) -> tuple[StateCost, ...]:
    """One a state group, in the layout's order, and one for the leaves that belong to none, as if they kept all."""
    costs: list[StateCost] = []
    for group in layout.groups:
        found = [_arrays(leaf_at(caches, path)) for path in group.leaves]
        if group.policy is HitPolicy.SNAPSHOT:
            costs.append(StateCost(0, fixed_bytes=sum(_size(arrays) for arrays in found), step=1))
        else:
            costs.append(StateCost(sum(_token_bytes(arrays) for arrays in found), group.window, step=_STEP))
    others = [path for path, layer in layout.leaves() if layer.kind is StateKind.UNSUPPORTED]
    return (*costs, *_other_cost(caches, others, num_tokens))


def _other_cost(caches: Caches, paths: Sequence[LeafPath], num_tokens: int) -> Iterable[StateCost]:
    total = sum(_size(_arrays(leaf_at(caches, path))) for path in paths)
    return (StateCost(-(-total // num_tokens), step=_STEP),) if total else ()


def _arrays(cache: Any) -> list[mx.array]:
    traits = traits_of(cache)
    if traits is None:
        return arrays_in(getattr(cache, "state", ()))
    return [tensor for tensor in traits.tensors(cache) if tensor is not None]


def _size(arrays: Sequence[mx.array]) -> int:
    return sum(array.nbytes for array in arrays)


def _token_bytes(arrays: Sequence[mx.array]) -> int:
    """Tokens lie on the axis before the last."""
    return sum(array.nbytes // array.shape[-2] for array in arrays)


__all__ = ("state_costs",)
