"""Attention on CUDA where mlx-lm's is slow: one token of many rows, and a few tokens of one sequence.

mlx-lm's attention is called with the cache whose keys it is given. `CudaAttention` replaces it, chooses by the class of
that cache and by lengths, and leaves everything else to mlx-lm.

Fused rows: one token a row, rows of different lengths
    MLX fuses attention of one query without a mask, and of several queries with one. One query with a mask takes
    several operations a layer, and as many times the memory. But query heads that share a head of keys are several
    queries to it, so they are passed as such, over the whole buffer, with a mask that is added:

        queries [rows, heads, 1, dim]   ->   [rows, key heads, heads of each, dim]
        keys, values                         all slots of the rows' buffer; other rows' slots are masked

    cuDNN makes a plan for every shape, which takes as long as some steps do (40 to 65 ms on an H100). The number of
    slots is constant until a buffer grows, and the number of rows counts as stable after PASSES_TOGETHER. Rows of equal
    lengths need no mask but take the same way: MLX's own reads the keys once for each query head.

Short queries: 2 to a few hundred tokens of one sequence
    Every new pair of lengths costs a plan (62 to 140 ms on an H100), and nearly every turn of a conversation is a new
    pair. Matrix products and a softmax are faster while scores and a copy of the keys are small. The lengths alone
    decide, so a repeated computation takes the same way again.

        queries [1, heads, q, dim]   ->   [1, key heads, heads of each * q, dim]: one matrix for each head of keys
        keys    [1, key heads, k, dim], padded with zeros to a multiple of 8, which aligns the rows of scores
        scores  [1, key heads, heads of each * q, k]: scale * queries * keys + mask, by one operation

    Scores are float32: rounded to bfloat16, peaked ones are wrong by a tenth. Products of 16-bit numbers are exact even
    where a device multiplies float32 by TF32, so the factors are not scaled before. The mask hides padded keys as well;
    all layers share it. Weights are rounded to the values' type, as in the fused kernel.

Verified drafts: a few tokens of each row, in a pass within `verifying`
    Fused like one token of many rows. Passes of a few widths recur while the number of
    slots is constant, so a plan is used many times; prompts of so few tokens recur seldom and take short queries:

        queries [rows, heads, q, dim]   ->   [rows, key heads, heads of each * q, dim]
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from adapters.mlx.caches.classes import PlainKV
from adapters.mlx.caches.kv_rows import KVRows, is_plain
from adapters.mlx.caches.views import viewed
from adapters.mlx.runtime.arrays import evaluate, trial
from adapters.mlx.runtime.replaced import Attention

MAX_DIM, DIM_UNIT = 128, 8
"""The widths of heads that cuDNN's attention takes."""

MIN_ROWS = 3
"""One block of the GPU reads all of a row: for two long rows MLX's several operations are faster (H100)."""

PASSES_TOGETHER = 8

MOST_BYTES = 64 << 20
"""The most temporary bytes of one layer for short queries: all layers together take less than MLX holds for a chunk,
which is what is charged. With 32 heads on 8 of 128: 16 queries on 5,000 keys, 64 on 3,000, 428 on 600, 500 on 500."""

_REGULAR = 256
"""Chunks whose length in tokens is a multiple of this recur in every long prompt, so a plan for one is used again."""

_ALIGNED = 8
_TRIED_SLOTS = 256

_fast: Any = mx.fast
_logger = logging.getLogger("cairn.mlx")


class CudaAttention:
    """A replacement of mlx-lm's function `original`. `is_verifying`: see `verifying`. Compute thread only."""

    is_verifying = False

    def __init__(self, original: Attention) -> None:
        self.original = original
        self._rows = FusedRows()
        self._short = ShortQueries()

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
        found: mx.array | None = None
        cache = viewed(cache)
        if sinks is None and (type(cache) is KVRows or (self.is_verifying and type(cache) is PlainKV)):
            found = self._rows.attend(queries, keys, values, cache, scale, mask, is_verifying=self.is_verifying)
        if found is None and sinks is None and is_plain(cache):
            found = self._short.attend(queries, keys, values, scale, mask)
        if found is not None:
            return found
        return self.original(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)


@contextmanager
def verifying(is_verifying: bool) -> Generator[None]:
    """Passes that are built within verify drafts, if `is_verifying`: their few lengths recur. Compute thread only."""
    CudaAttention.is_verifying = is_verifying
    try:
        yield
    finally:
        CudaAttention.is_verifying = False


def is_fusible(queries: mx.array, keys: mx.array, values: mx.array) -> bool:
    """True if cuDNN's attention takes these types and widths."""
    return (
        queries.dtype == keys.dtype == values.dtype
        and queries.dtype in (mx.float16, mx.bfloat16)
        and not queries.shape[1] % keys.shape[1]
        and all(one.shape[3] <= MAX_DIM and not one.shape[3] % DIM_UNIT for one in (queries, values))
    )


class FusedRows:
    """One token of many rows, or a few of each. Keeps the mask of the last pass, which all layers share, and which
    kinds of heads the device can fuse."""

    def __init__(self) -> None:
        self._is_fused: dict[tuple[int, int, int, int, mx.Dtype], bool] = {}
        self._mask: Any = None
        self._added: mx.array | None = None
        self._added_for: tuple[object, ...] = ()

    def attend(
        self, queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, mask: Any, *, is_verifying: bool
    ) -> mx.array | None:
        """Returns None if the rows changed lately, or if the mask, lengths, types or widths cannot be fused."""
        rows, heads, count, dim = queries.shape
        groups, end = keys.shape[1:3]
        is_known = (mask is None and count == 1) or (isinstance(mask, str) and mask == "causal")
        if isinstance(mask, mx.array) and mask.dtype == mx.bool_:
            is_known = mask.shape in ((rows, 1, count, end), (count, end))
        applies = is_known and (is_verifying or self._are_rows(queries, keys, values, cache))
        if not applies or not is_fusible(queries, keys, values) or not self._can_fuse(queries, values):
            return None
        sharing = mx.reshape(queries, (rows, groups, heads // groups * count, dim))
        added = self._added_mask(mask, queries, heads // groups, end, cache.keys.shape[2])
        fused = _fast.scaled_dot_product_attention(
            sharing, cache.keys[:rows], cache.values[:rows], scale=scale, mask=added
        )
        return mx.reshape(fused, (rows, heads, count, fused.shape[3]))

    @staticmethod
    def _are_rows(queries: mx.array, keys: Any, values: Any, cache: KVRows) -> bool:
        return (
            cache.num_rows >= MIN_ROWS
            and cache.num_passes_together > PASSES_TOGETHER
            and cache.is_last_fetched(keys, values)
            and queries.shape[2] == 1
            and queries.shape[1] > keys.shape[1]
        )

    def _can_fuse(self, queries: mx.array, values: mx.array) -> bool:
        """Tries the device once for each kind of heads: a shape that cuDNN refuses would fail a step of all rows."""
        heads, groups, dim, value_dim = queries.shape[1], values.shape[1], queries.shape[3], values.shape[3]
        kind = (heads, groups, dim, value_dim, queries.dtype)
        if kind not in self._is_fused:
            shared = heads // groups
            shapes = (groups, shared, dim), (groups, _TRIED_SLOTS, dim), (groups, _TRIED_SLOTS, value_dim)
            *tried, added = (
                mx.zeros((MIN_ROWS, *shape), queries.dtype) for shape in (*shapes, (1, shared, _TRIED_SLOTS))
            )
            try:
                with trial():
                    evaluate([_fast.scaled_dot_product_attention(*tried, scale=1.0, mask=added)])
                self._is_fused[kind] = True
            except (RuntimeError, ValueError) as error:
                _logger.warning("attention over rows of different lengths is not fused: %s", error)
                self._is_fused[kind] = False
        return self._is_fused[kind]

    def _added_mask(self, mask: Any, queries: mx.array, of_each: int, end: int, slots: int) -> mx.array:
        """[rows, 1, of_each * tokens, slots]: 0, or minus infinity. `mask`: of the slots before `end`; causal if it is
        no array."""
        rows, count, dtype = queries.shape[0], queries.shape[2], queries.dtype
        added_for = rows, count, dtype, of_each, end, slots
        if self._added is None or mask is not self._mask or added_for != self._added_for:
            causal = mx.arange(end) <= mx.arange(end - count, end)[:, None]
            seen = mx.broadcast_to(mask if isinstance(mask, mx.array) else causal, (rows, 1, count, end))
            beyond = mx.zeros((rows, 1, count, slots - end), mx.bool_)
            added = mx.where(mx.concatenate([seen, beyond], axis=-1), 0, -mx.inf).astype(dtype)
            self._added = mx.contiguous(mx.tile(added, (1, 1, of_each, 1)))
            self._mask, self._added_for = mask, added_for
        return self._added


class ShortQueries:
    """A few tokens of one sequence. Keeps the mask of the last lengths until a call takes another way."""

    def __init__(self) -> None:
        self._mask: mx.array | None = None
        self._mask_key: tuple[int, int, int, bool] | None = None

    def attend(self, queries: mx.array, keys: Any, values: Any, scale: float, mask: Any) -> mx.array | None:
        """Returns None if the lengths, the mask or the types do not fit."""
        is_causal = isinstance(mask, str) and mask == "causal"
        if not self._applies(queries, keys, values) or not (mask is None or is_causal):
            self._mask = self._mask_key = None
            return None
        _, heads, num_queries, dim = queries.shape
        groups, num_keys = keys.shape[1:3]
        of_each = heads // groups
        folded = mx.reshape(queries, (1, groups, of_each * num_queries, dim)).astype(mx.float32)
        turned = mx.swapaxes(_padded(keys).astype(mx.float32), -1, -2)
        scores = mx.addmm(self._added_mask(num_queries, num_keys, of_each, is_causal), folded, turned, alpha=scale)
        weights = mx.softmax(scores, axis=-1).astype(values.dtype)
        return mx.reshape(weights @ _padded(values), (1, heads, num_queries, values.shape[3]))

    @staticmethod
    def _applies(queries: mx.array, keys: Any, values: Any) -> bool:
        rows, num_queries = queries.shape[0], queries.shape[2]
        return (
            num_queries > 1
            and num_queries % _REGULAR != 0
            and rows == 1
            and is_fusible(queries, keys, values)
            and num_queries <= keys.shape[2]
            and layer_bytes(queries, keys, values) <= MOST_BYTES
        )

    def _added_mask(self, num_queries: int, num_keys: int, of_each: int, is_causal: bool) -> mx.array:
        """[of_each * q, padded keys]: 0, or minus infinity."""
        key = (num_queries, num_keys, of_each, is_causal)
        if self._mask is None or self._mask_key != key:
            first = num_keys - num_queries if is_causal else num_keys - 1
            last = mx.tile(mx.arange(first, num_keys) if is_causal else mx.full(num_queries, first), of_each)
            is_seen = mx.arange(_aligned(num_keys)) <= last[:, None]
            self._mask = mx.where(is_seen, mx.array(0, mx.float32), mx.array(-mx.inf, mx.float32))
            self._mask_key = key
        return self._mask


def layer_bytes(queries: mx.array, keys: mx.array, values: mx.array) -> int:
    """Temporary bytes of one layer's short queries, none of which a device that runs behind frees in between: scores,
    weights and the mask; keys in float32, padded keys and values; queries in order and in float32, and the result."""
    heads, groups, size = queries.shape[1], keys.shape[1], queries.dtype.size
    dim, value_dim, wide = queries.shape[3], values.shape[3], mx.float32.size
    pair_bytes = heads * (wide + size) + heads // groups * (wide + mx.bool_.size)
    query_bytes = heads * (dim * (wide + size) + value_dim * size)
    key_bytes = groups * (dim * (wide + size) + value_dim * size)
    return query_bytes * queries.shape[2] + (pair_bytes * queries.shape[2] + key_bytes) * _aligned(keys.shape[2])


def _padded(tokens: mx.array) -> mx.array:
    """Zeros behind the tokens, since the cache's buffer may hold anything there."""
    missing = _aligned(tokens.shape[2]) - tokens.shape[2]
    return mx.pad(tokens, [(0, 0), (0, 0), (0, missing), (0, 0)]) if missing else tokens


def _aligned(num_keys: int) -> int:
    return -(-num_keys // _ALIGNED) * _ALIGNED
