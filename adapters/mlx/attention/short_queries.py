"""Attention of a few queries of one sequence, computed without a plan of cuDNN's.

For every new pair of lengths cuDNN makes a plan (62 to 140 ms on an H100), and nearly every turn of a conversation has
a new one. A few queries are computed faster by matrix products and a softmax, as long as their scores and a copy of the
keys are small: the lengths alone decide, so a computation that is repeated goes the same way again.

    queries [1, heads, q, dim]   ->   [1, key heads, heads of each * q, dim]: one matrix for each head of keys
    keys    [1, key heads, k, dim], filled up with zeros to a multiple of 8: else rows of scores are not aligned
    scores  [1, key heads, heads of each * q, k]: scale * queries * keys + mask, by one operation

Scores are float32: rounded to bfloat16, peaked ones are wrong by a tenth. Products of 16-bit numbers are exact even
where a device multiplies float32 by TF32, so what is multiplied is not scaled before. The mask has a row for every row
of one head of keys, as the product reads it, and hides the keys that were filled up as well; all layers share it. Only
weights are rounded to the values' type, as the fused kernel does.
"""

from typing import Any

import mlx.core as mx

from adapters.mlx.attention.fused_rows import is_fusible

MOST_BYTES = 64 << 20
"""Bytes of all that one layer makes: all layers together take less than MLX has under way of a whole chunk, which is
what is charged. By 32 heads on 8 of 128: 16 queries on 5,000 keys, 64 on 3,000, 428 on 600, 500 on themselves."""

_UNIT = 256
"""Chunks of a multiple of so many tokens come again in every long prompt: a plan for one serves the next."""

_ALIGNED = 8
"""Keys are filled up to a multiple of so many: rows of scores that are not aligned take several times as long."""


class ShortQueries:
    """Compute thread only. It remembers the mask of the last lengths, until what is asked goes another way."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._mask: mx.array | None = None
        self._mask_of: tuple[int, int, int, bool] | None = None

    def __call__(
        self, queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, mask: Any
    ) -> mx.array | None:
        """Attention over a plain cache; None where this way does not apply."""
        found = self._found(queries, keys, values, scale, mask)
        if found is None:
            self._mask = self._mask_of = None
        return found

    def _found(self, queries: mx.array, keys: Any, values: Any, scale: float, mask: Any) -> mx.array | None:
        rows, heads, num_queries, dim = queries.shape
        if num_queries < 2 or not num_queries % _UNIT:
            return None
        is_causal = isinstance(mask, str) and mask == "causal"
        if rows != 1 or not (mask is None or is_causal) or not is_fusible(queries, keys, values):
            return None
        groups, num_keys = keys.shape[1:3]
        if num_queries > num_keys or layer_bytes(queries, keys, values) > self._most_bytes:
            return None
        of_each = heads // groups
        folded = mx.reshape(queries, (1, groups, of_each * num_queries, dim)).astype(mx.float32)
        turned = mx.swapaxes(_filled(keys).astype(mx.float32), -1, -2)
        scores = mx.addmm(self._masked(num_queries, num_keys, of_each, is_causal), folded, turned, alpha=scale)
        weights = mx.softmax(scores, axis=-1).astype(values.dtype)
        return mx.reshape(weights @ _filled(values), (1, heads, num_queries, values.shape[3]))

    def _masked(self, num_queries: int, num_keys: int, of_each: int, is_causal: bool) -> mx.array:
        """[of_each * q, keys with those that are filled up]: 0, or minus infinity."""
        wanted = (num_queries, num_keys, of_each, is_causal)
        if self._mask is None or self._mask_of != wanted:
            first = num_keys - num_queries if is_causal else num_keys - 1
            last = mx.tile(mx.arange(first, num_keys) if is_causal else mx.full(num_queries, first), of_each)
            is_seen = mx.arange(_aligned(num_keys)) <= last[:, None]
            self._mask = mx.where(is_seen, mx.array(0, mx.float32), mx.array(-mx.inf, mx.float32))
            self._mask_of = wanted
        return self._mask


def _filled(tokens: mx.array) -> mx.array:
    """Behind the tokens zeros, and not what a cache's buffer has there: that may be anything."""
    num_tokens = tokens.shape[2]
    missing = _aligned(num_tokens) - num_tokens
    return mx.pad(tokens, [(0, 0), (0, 0), (0, missing), (0, 0)]) if missing else tokens


def layer_bytes(queries: mx.array, keys: mx.array, values: mx.array) -> int:
    """All that one layer makes, since a device that runs behind gives nothing back in between: scores, their weights
    and the mask with what it is made of; keys in float32, and keys and values filled up; queries in order and in
    float32, and what is found."""
    heads, groups, size = queries.shape[1], keys.shape[1], queries.dtype.size
    dim, value_dim, wide = queries.shape[3], values.shape[3], mx.float32.size
    pair_bytes = heads * (wide + size) + heads // groups * (wide + mx.bool_.size)
    query_bytes = heads * (dim * (wide + size) + value_dim * size)
    key_bytes = groups * (dim * (wide + size) + value_dim * size)
    return query_bytes * queries.shape[2] + (pair_bytes * queries.shape[2] + key_bytes) * _aligned(keys.shape[2])


def _aligned(num_keys: int) -> int:
    """With those that are filled up."""
    return -(-num_keys // _ALIGNED) * _ALIGNED
