"""Cache objects that may be changed while the originals stay what they are: a batch is changed whole or not at all.

Joining and narrowing replace the arrays of a cache object and never write into them, so a twin needs no array of its
own. Twins and originals must not both be used for computing: that does write into them.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.cache_state import Caches


def twins(caches: Caches) -> Caches:
    """Objects of the same classes that hold the same arrays."""
    return [_twin(cache) for cache in caches]


def forked(caches: Caches) -> Caches:
    """Objects that hold the same values, and that may be computed on as the originals may: writing into an array
    replaces the handle's buffer, so each has handles of its own."""
    return [_forked(cache) for cache in caches]


def _forked(value: Any) -> Any:
    if isinstance(value, mx.array):
        return mx.array(value)
    if isinstance(value, list | tuple):
        items = cast(Sequence[Any], value)
        forked = [_forked(item) for item in items]
        return forked if isinstance(value, list) else tuple(forked)
    if not hasattr(value, "__dict__") or isinstance(value, type):
        return value
    fork = copy(value)
    for name, held in cast(dict[str, Any], vars(value)).items():
        setattr(fork, name, _forked(held))
    return fork


def _twin(cache: Any) -> Any:
    twin = copy(cache)
    if hasattr(twin, "caches"):  # a composite
        twin.caches = tuple(_twin(child) for child in twin.caches)
    return twin


__all__ = ("forked", "twins")
