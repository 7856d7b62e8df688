"""Cache objects that may be changed while the originals stay what they are: a batch is changed whole or not at all.

Joining and narrowing replace the arrays of a cache object and never write into them, so a twin needs no array of its
own. Twins and originals must not both be used for computing: that does write into them.
"""

from copy import copy
from typing import Any

from adapters.mlx.cache_state import Caches


def twins(caches: Caches) -> Caches:
    """Objects of the same classes that hold the same arrays."""
    return [_twin(cache) for cache in caches]


def _twin(cache: Any) -> Any:
    twin = copy(cache)
    if hasattr(twin, "caches"):  # a composite
        twin.caches = tuple(_twin(child) for child in twin.caches)
    return twin


__all__ = ("twins",)
