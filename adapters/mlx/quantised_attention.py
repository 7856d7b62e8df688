"""Attention of a few queries over keys and values that are quantised (`caches.quantised`), without dequantising them.

A decode step, or the verification of a draft, reads all of a sequence's tokens for a few queries, so that dequantising
them first would cost more than attention itself. A prompt's chunk has so many queries that it pays: there one layer's
keys and values are dequantised for the fused kernel. The arrays that a cache returned are lazy, and not computed unless
attention uses them.

    queries  [rows, heads, q, width]  ->  [rows, key heads, heads of each * q, width]
    scores   = quantised product with the words of the keys, by their scales and biases; masked; softmax
    result   = quantised product of the weights with those of the values

On a CPU the products are computed in float32, which is five times as fast there as bfloat16. CUDA has no quantised
product of this form: a kernel of Cairn's own reads the words (`cuda.quantised_attention`).
"""

from typing import Any

import mlx.core as mx

from adapters.mlx.caches.leaves import leaves, new_caches
from adapters.mlx.caches.quantised import QuantisedBuffers, Side, filled
from adapters.mlx.caches.views import viewed
from adapters.mlx.cuda.quantised_attention import attend_on_cuda
from adapters.mlx.runtime.device import has_cuda, on_cpu
from adapters.mlx.runtime.replaced import Attention, replace_attention

MOST_QUERIES = 8
"""The most tokens of a row whose queries are few: the waiting token and a draft. The products grow with their number,
dequantising does not."""


class QuantisedAttention:
    """A replacement of mlx-lm's function. `num_direct`: calls that dequantised nothing. Compute thread only."""

    def __init__(self, original: Attention) -> None:
        self.original = original
        self.num_direct = 0

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
        held = viewed(cache)
        if (
            isinstance(held, QuantisedBuffers)
            and queries.shape[2] <= MOST_QUERIES
            and held.is_last_fetched(keys, values)
        ):
            attend = attend_on_cuda if has_cuda() else attend_quantised
            found = attend(queries, held, scale, mask, sinks)
            if found is not None:
                self.num_direct += 1
                return found
        return self.original(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)


def attend_quantised(
    queries: mx.array, cache: QuantisedBuffers, scale: float, mask: Any, sinks: mx.array | None
) -> mx.array:
    """Attention by quantised products, [rows, heads, q, width]; lazy. `mask`: None, causal, or an array that broadcasts
    to [rows, heads, q, tokens], of truth values or to be added. `sinks`: [heads], a score of each head that takes
    weight and has no value."""
    parts, (of_keys, of_values) = cache.parts(), cache.sides
    rows, heads, count, _ = queries.shape
    groups, tokens = parts[0].shape[1:3]
    each = heads // groups
    dtype = queries.dtype
    if on_cpu():
        queries, parts = queries.astype(mx.float32), [_wide(part) for part in parts]
    asked = mx.reshape(queries * scale, (rows, groups, each * count, queries.shape[-1]))
    scores = _product(asked, parts[:3], of_keys, transpose=True)
    scores = mx.reshape(scores, (rows, groups, each, count, tokens))
    if mask is not None:
        scores = _masked(scores, mask, groups)
    if sinks is not None:
        column = mx.reshape(sinks, (1, groups, each, 1, 1)).astype(scores.dtype)
        scores = mx.concatenate([scores, mx.broadcast_to(column, (*scores.shape[:-1], 1))], axis=-1)
    weights = mx.softmax(scores, axis=-1, precise=True)[..., :tokens]
    weights = mx.reshape(weights, (rows, groups, each * count, tokens))
    found = _product(weights, parts[3:], of_values, transpose=False)[..., : of_values.width]
    return mx.reshape(found, (rows, heads, count, of_values.width)).astype(dtype)


def _product(one: mx.array, parts: list[mx.array], side: Side, *, transpose: bool) -> mx.array:
    (words, scales, biases), group = parts, side.group_size
    one = filled(one, group) if transpose else one
    return mx.quantized_matmul(one, words, scales, biases, transpose=transpose, group_size=group, bits=side.bits)


def _wide(part: mx.array) -> mx.array:
    return part.astype(mx.float32) if mx.issubdtype(part.dtype, mx.floating) else part


def _masked(scores: mx.array, mask: Any, groups: int) -> mx.array:
    """`scores`: [rows, key heads, heads of each, q, tokens]."""
    count, tokens = scores.shape[-2:]
    if isinstance(mask, str):
        mask = mx.arange(tokens) <= mx.arange(tokens - count, tokens)[:, None]
    elif mask.ndim > 2:
        mask = mask[None] if mask.ndim == 3 else mask
        mask = mx.reshape(mask, (mask.shape[0], groups if mask.shape[1] > 1 else 1, -1, *mask.shape[-2:]))
    if mask.dtype == mx.bool_:
        return mx.where(mask, scores, mx.array(-mx.inf, scores.dtype))
    return mx.add(scores, mask.astype(scores.dtype))


def num_dequantised(network: Any) -> int:
    """The number of layers of a network that every decode step dequantises, which is slower: those that attend by code
    of their own, or with heads that no kernel takes. Computes nothing."""
    attention = replace_attention(QuantisedAttention, QuantisedAttention)
    caches, before = new_caches(network), attention.num_direct
    network(mx.zeros((1, 1), dtype=mx.uint32), cache=caches)
    num_kept = sum(isinstance(cache, QuantisedBuffers) for cache in leaves(caches))
    return max(0, num_kept - (attention.num_direct - before))
