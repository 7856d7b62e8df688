"""Attention of one token a row over rows of different lengths, as one operation where MLX has none for it.

On CUDA MLX fuses attention of one query without a mask, and of several queries with one; one query with a mask takes
several operations a layer. So each query is asked twice there, over the whole buffer: what is beyond a row is masked as
well, and the shapes, which cuDNN makes a plan for, are the same until a buffer grows or a row comes or goes.

mlx-lm's attention is told the cache whose keys it is given, and treats some classes of them in their own way. This is
that way for rows of a batch; everything else is left to it.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from adapters.mlx.caches.kv_rows import KVRows
from adapters.mlx.file_limit import mlx_lm_module

_base: Any = mlx_lm_module("models.base")
_fast: Any = mx.fast

MAX_DIM, DIM_UNIT = 128, 8
"""What cuDNN's attention takes."""


class FusedRows:
    """In place of mlx-lm's function `otherwise`. Compute thread only. It remembers the mask of the last step, which all
    layers share."""

    def __init__(self, otherwise: Callable[..., Any]) -> None:
        self._otherwise = otherwise
        self._mask: mx.array | None = None
        self._added = mx.zeros(())

    def __call__(
        self,
        queries: mx.array,
        keys: Any,
        values: Any,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        if sinks is not None or not _can_fuse(queries, keys, values, cache, mask):
            found: mx.array = self._otherwise(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
            return found
        rows, heads, _, dim = queries.shape
        groups = cache.keys.shape[1]
        sharing = mx.reshape(queries, (rows, groups, heads // groups, dim))
        added = self._added_of(mask, (rows, 1, heads // groups, cache.num_slots), queries.dtype)
        whole = cache.keys[:rows], cache.values[:rows]
        fused: mx.array = _fast.scaled_dot_product_attention(sharing, *whole, scale=scale, mask=added)
        return mx.reshape(fused, (rows, heads, 1, fused.shape[3]))

    def _added_of(self, mask: mx.array, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        if mask is not self._mask or self._added.shape != shape or self._added.dtype != dtype:
            beyond = mx.zeros((*mask.shape[:3], shape[3] - mask.shape[3]), mx.bool_)
            added = mx.where(mx.concatenate([mask, beyond], axis=-1), 0, -mx.inf).astype(dtype)
            self._mask, self._added = mask, mx.contiguous(mx.broadcast_to(added, shape))
        return self._added


def _can_fuse(queries: mx.array, keys: Any, values: Any, cache: Any, mask: Any) -> bool:
    """One token a row, over what the rows' cache gave, in a type and of widths that are fused."""
    return (
        type(cache) is KVRows
        and cache.is_what_was_fetched(keys, values)
        and queries.shape[2] == 1
        and queries.shape[1] > keys.shape[1]
        and isinstance(mask, mx.array)
        and mask.dtype == mx.bool_
        and mask.shape == (cache.num_rows, 1, 1, keys.shape[2])
        and queries.dtype == keys.dtype == values.dtype
        and queries.dtype in (mx.float16, mx.bfloat16)
        and all(one.shape[3] <= MAX_DIM and not one.shape[3] % DIM_UNIT for one in (queries, values))
    )


def fuse_rows() -> None:
    """From now on, for the families that are imported later. Repeating it does nothing."""
    if not isinstance(_base.scaled_dot_product_attention, FusedRows):
        _base.scaled_dot_product_attention = FusedRows(_base.scaled_dot_product_attention)


__all__ = ("FusedRows", "fuse_rows")
