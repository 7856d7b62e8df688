"""Caches as one forward pass sees them: with other offsets, masks, and something to add behind a layer.

A view answers for its cache but for what the pass was given, and lives as long as the pass. So what one pass needs is
handed to the layers with the caches, and kept neither in them nor in the model.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from adapters.mlx.caches.leaves import Caches
from adapters.mlx.runtime.arrays import from_numpy


class CacheView:
    """One cache as a pass sees it. The views of a pass stand for the caches of attention only."""

    def __init__(
        self, cache: Any, offset: Any, *, runs: Sequence[tuple[int, int]] = (), deep: mx.array | None = None
    ) -> None:
        """`offset`: by which the layer rotates: a number, one a row [rows], or positions [3, length]. `runs`: of the
        pass's tokens that attend to each other, as [start, end). `deep`: added behind the layer, [1, length, hidden].
        """
        self.viewed, self.offset, self.deep = cache, offset, deep
        self._runs = runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.viewed, name)

    def make_mask(self, length: int, **options: Any) -> Any:
        if not self._runs:
            return self.viewed.make_mask(length, **options)
        mask = self.viewed.make_mask(length, **{**options, "return_array": True})
        before = mask.shape[-1] - length
        whole = np.zeros((length, mask.shape[-1]), np.bool_)
        for start, end in self._runs:
            whole[start:end, before + start : before + end] = True
        return mask | from_numpy(whole)


def viewed(cache: Any) -> Any:
    """The cache itself, of a view or a cache."""
    return cache.viewed if type(cache) is CacheView else cache


def shifted(caches: Caches, shifts: Sequence[int]) -> Caches:
    """The caches of rows whose positions are `shifts` behind their numbers of tokens."""
    if not any(shifts):
        return caches
    behind = mx.array(list(shifts)) if len(shifts) > 1 else shifts[0]
    return [CacheView(cache, cache.offset - behind) if hasattr(cache, "offset") else cache for cache in caches]
