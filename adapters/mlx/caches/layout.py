"""The cache objects of one sequence, and what they consist of: each one inspected, none assumed to be like another."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import mlx.core as mx

from adapters.mlx.caches.classes import children_of, label_of, lib, traits_of
from adapters.mlx.runtime.arrays import arrays_in
from domain.models.state_layout import LayerState, LeafPath, StateKind, StateLayout

Caches: TypeAlias = list[Any]
"""One cache object a layer, in the order of the model's `make_cache`. Plain ones hold one sequence, batch ones many."""


def new_caches(network: Any) -> Caches:
    """Fresh plain caches for one sequence."""
    return list(lib.make_prompt_cache(network))


def layout_of(caches: Caches) -> StateLayout:
    """The layout of these cache objects, each one inspected."""
    return StateLayout(tuple(_describe(cache) for cache in caches))


def _describe(cache: Any) -> LayerState:
    children = children_of(cache)
    if children is not None:
        return LayerState(StateKind.COMPOSITE, label_of(cache), children=tuple(_describe(child) for child in children))
    traits = traits_of(cache)
    if traits is None:
        return LayerState(StateKind.UNSUPPORTED, label_of(cache))
    window = traits.window(cache) if traits.window else None
    return LayerState(traits.kind, label_of(cache), window)


def leaf_at(caches: Sequence[Any], path: LeafPath) -> Any:
    """The cache object at a layout path."""
    found: Any = caches[path[0]]
    for index in path[1:]:
        found = found.caches[index]
    return found


def leaves(caches: Sequence[Any]) -> Iterator[Any]:
    """Every cache object that is not a composite, depth first."""
    for cache in caches:
        children = children_of(cache)
        if children is None:
            yield cache
        else:
            yield from leaves(children)


def live_arrays(caches: Sequence[Any]) -> list[mx.array]:
    """Every array the caches hold, for evaluation; do not keep them over an update."""
    found: list[mx.array] = []
    for cache in leaves(caches):
        traits = traits_of(cache)
        if traits is not None:
            found += [tensor for tensor in traits.tensors(cache) if tensor is not None]
        else:
            found += arrays_in(getattr(cache, "state", ()))
    return found


def shed_chunk(caches: Sequence[Any]) -> None:
    """Let recurrent states own their memory: some families leave a slice of what they computed for a whole chunk, which
    would stay alive with it, up to a hundred times as large. Lazy, and a copy of nothing that stands alone."""
    for cache in leaves(caches):
        if type(cache) is lib.ArraysCache:
            cache.cache = [None if tensor is None else mx.contiguous(tensor) for tensor in cache.cache]
