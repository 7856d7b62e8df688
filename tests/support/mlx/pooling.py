"""The pooling of groups that overlap, as a network computes it: a weighting that shows every token that went in."""

import mlx.core as mx

from adapters.mlx.caches.pooled import PooledTokens


def pooled(cache: PooledTokens, tokens: mx.array, start: int) -> mx.array:
    """Feeds tokens [1, length, dim] from position `start` on; returns all pooled ones."""
    kv, gate, first = cache.accumulate_windows(tokens, 2 * tokens, start)
    groups = kv.reshape(1, -1, cache.ratio, tokens.shape[-1])
    weights = mx.arange(1.0, 1 + cache.ratio)[:, None]
    own, twice = (groups * weights).sum(axis=2), gate.reshape(groups.shape).sum(axis=2)
    before = mx.pad(own, [(0, 0), (1, 0), (0, 0)])[:, :-1] if cache.overlaps else 0
    places = mx.arange(own.shape[1])[:, None] * cache.ratio + first
    return cache.update_and_fetch(own + twice + 0.5 * before + 1000 * places)
