"""Attention of one token a row over rows of different lengths, as one operation where MLX has none for it.

On CUDA MLX fuses attention of one query without a mask, and of several queries with one; one query with a mask takes
several operations a layer, and as many times the memory. But query heads that share a head of keys are several queries
to it: they are asked as such, over the whole buffer, with a mask that is added.

    queries [rows, heads, 1, dim]   ->   [rows, key heads, heads of each, dim]
    keys, values                         all slots of the rows' buffer; what is not a row's own is masked

cuDNN makes a plan for every shape, which takes as long as some steps do (40 to 65 ms on an H100). The number of slots
stays until a buffer grows, and a number of rows is taken for one that stays once it has for PASSES_TOGETHER. Rows of
equal lengths need no mask, and are asked in the same way: MLX's own goes through the keys once for each query head.
"""

import logging
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from adapters.mlx.caches.kv_rows import KVRows
from adapters.mlx.runtime.arrays import evaluate

Attention = Callable[..., mx.array]

_fast: Any = mx.fast

MAX_DIM, DIM_UNIT = 128, 8
"""The widths of heads that cuDNN's attention takes."""

MIN_ROWS = 3
"""One block of the GPU goes through all of a row: for two long ones MLX's several operations are faster (H100)."""

PASSES_TOGETHER = 8

_TRIED_SLOTS = 256

_logger = logging.getLogger("cairn.mlx")


class FusedRows:
    """Compute thread only. It remembers the mask of the last step, which all layers share, and of which kinds of heads
    the device has such attention."""

    def __init__(self, attend: Attention = _fast.scaled_dot_product_attention) -> None:
        """`attend`: MLX's own, replaced by tests only."""
        self._attend = attend
        self._is_fused: dict[tuple[int, int, int, int, mx.Dtype], bool] = {}
        self._mask: mx.array | int | None = None
        self._added: mx.array | None = None

    def __call__(
        self, queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, mask: Any
    ) -> mx.array | None:
        """Attention of rows that stay together; None where this way does not apply."""
        if not _may_fuse(queries, keys, values, cache, mask) or not self._can(queries, values):
            return None
        rows, heads, _, dim = queries.shape
        groups = values.shape[1]
        sharing = mx.reshape(queries, (rows, groups, heads // groups, dim))
        shape = rows, 1, heads // groups, cache.num_slots
        added = self._added_of(keys.shape[2] if mask is None else mask, shape, queries.dtype)
        fused = self._attend(sharing, cache.keys[:rows], cache.values[:rows], scale=scale, mask=added)
        return mx.reshape(fused, (rows, heads, 1, fused.shape[3]))

    def _can(self, queries: mx.array, values: mx.array) -> bool:
        """Tried once: what cuDNN refuses fails a step, and all rows of it, only when it is computed."""
        heads, groups, dim, value_dim = queries.shape[1], values.shape[1], queries.shape[3], values.shape[3]
        kind = (heads, groups, dim, value_dim, queries.dtype)
        if kind not in self._is_fused:
            asked, keys, given, added = (
                mx.zeros((MIN_ROWS, *shape), queries.dtype)
                for shape in (
                    (groups, heads // groups, dim),
                    (groups, _TRIED_SLOTS, dim),
                    (groups, _TRIED_SLOTS, value_dim),
                    (1, heads // groups, _TRIED_SLOTS),
                )
            )
            try:
                evaluate([self._attend(asked, keys, given, scale=1.0, mask=added)])
                self._is_fused[kind] = True
            except (RuntimeError, ValueError) as error:
                _logger.warning("attention over rows of different lengths is not fused: %s", error)
                self._is_fused[kind] = False
        return self._is_fused[kind]

    def _added_of(self, mask: mx.array | int, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """`mask`: of the slots up to now, or how many there are where all are seen."""
        added = self._added
        is_same = mask == self._mask if isinstance(mask, int) and isinstance(self._mask, int) else mask is self._mask
        if not is_same or added is None or added.shape != shape or added.dtype != dtype:
            seen = mx.ones((1, 1, 1, mask), mx.bool_) if isinstance(mask, int) else mask
            beyond = mx.zeros((*seen.shape[:3], shape[3] - seen.shape[3]), mx.bool_)
            where = mx.where(mx.concatenate([seen, beyond], axis=-1), 0, -mx.inf).astype(dtype)
            added = mx.contiguous(mx.broadcast_to(where, shape))
            self._mask, self._added = mask, added
        return added


def _may_fuse(queries: mx.array, keys: Any, values: Any, cache: KVRows, mask: Any) -> bool:
    """One token a row, over what the cache of rows that stay gave, in a type and of widths that are fused."""
    return (
        cache.num_rows >= MIN_ROWS
        and cache.num_passes_together > PASSES_TOGETHER
        and cache.is_what_was_fetched(keys, values)
        and queries.shape[2] == 1
        and queries.shape[1] > keys.shape[1]
        and (mask is None or _is_of_rows(mask, cache.num_rows, keys.shape[2]))
        and is_fusible(queries, keys, values)
    )


def _is_of_rows(mask: Any, num_rows: int, num_slots: int) -> bool:
    return isinstance(mask, mx.array) and mask.dtype == mx.bool_ and mask.shape == (num_rows, 1, 1, num_slots)


def is_fusible(queries: mx.array, keys: mx.array, values: mx.array) -> bool:
    """Whether cuDNN's attention takes these types and widths."""
    return (
        queries.dtype == keys.dtype == values.dtype
        and queries.dtype in (mx.float16, mx.bfloat16)
        and not queries.shape[1] % keys.shape[1]
        and all(one.shape[3] <= MAX_DIM and not one.shape[3] % DIM_UNIT for one in (queries, values))
    )
