"""Attention of a few queries of one sequence, computed without a plan of cuDNN's.

For every new pair of lengths cuDNN makes a plan (62 ms on an H100), and nearly every turn of a conversation has a new
one. A few queries are computed faster by matrix products and a softmax, as long as their scores are small
(`domain/memory/score_cost`): 64 queries on 72,000 keys in 37 to 47 ms over 36 layers, by a new plan in 108, by a known
one in 31.

    queries [1, heads, q, dim]   ->   [1, key heads, heads of each * q, dim]: one matrix for each head of keys
    scores  [1, key heads, heads of each * q, k]; only the last q columns need the mask: those are computed once more,
            masked, and written over, which copies nothing. Scores that are read by two operations would be copied.

Scores have the queries' type, as where MLX fuses nothing; the softmax is made in float32. What such scores take is
charged beside what traces find (`noting`), since traces are of chunks whose lengths stand for others.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import mlx.core as mx

from adapters.mlx.caches.fused_rows import is_fusible
from domain.memory.score_cost import ScoreCost, has_scores

_noted: ContextVar[list[tuple[int, int]] | None] = ContextVar("noted scores", default=None)


class ShortQueries:
    """Compute thread only. It remembers the mask of the last lengths, which all layers share. `most_bytes`: of the
    scores of one layer."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._mask: mx.array | None = None

    def __call__(
        self, queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, mask: Any
    ) -> mx.array | None:
        """Of a plain cache. None: not by this way."""
        noted, (rows, heads, num_queries, dim) = _noted.get(), queries.shape
        if num_queries < 2 and noted is None:
            return None
        is_causal = isinstance(mask, str) and mask == "causal"
        if rows != 1 or not (mask is None or is_causal) or not is_fusible(queries, keys, values):
            return None
        pair_bytes = heads * queries.dtype.size
        if noted is not None:
            noted.append((pair_bytes, self._most_bytes))
            return None
        groups, num_keys = keys.shape[1:3]
        if num_queries > num_keys or not has_scores(num_queries, num_keys, pair_bytes, self._most_bytes):
            return None
        folded = mx.reshape(queries * scale, (1, groups, heads // groups * num_queries, dim))
        scores = self._scores(folded, mx.swapaxes(keys, -1, -2), num_queries if is_causal else 0)
        found = mx.softmax(scores, axis=-1, precise=True) @ values
        return mx.reshape(found, (1, heads, num_queries, values.shape[3]))

    def _scores(self, folded: mx.array, keys: mx.array, num_masked: int) -> mx.array:
        """`keys`: [1, key heads, dim, k]."""
        if not num_masked:
            return folded @ keys
        before = keys.shape[3] - num_masked
        if not before:
            return self._masked(folded @ keys, num_masked)
        scores = folded @ keys
        scores[..., before:] = self._masked(folded @ keys[..., before:], num_masked)
        return scores

    def _masked(self, scores: mx.array, num_queries: int) -> mx.array:
        """Scores on the last `num_queries` keys alone."""
        mask = self._mask
        if mask is None or mask.shape[0] != num_queries or mask.dtype != scores.dtype:
            mask = mx.triu(mx.full((num_queries, num_queries), -mx.inf, scores.dtype), k=1)
            self._mask = mask
        _, groups, rows, num_keys = scores.shape
        by_head = mx.reshape(scores, (1, groups, rows // num_queries, num_queries, num_keys))
        return mx.reshape(by_head + mask, scores.shape)


@contextmanager
def noting() -> Generator[list[tuple[int, int]]]:
    """Meanwhile nothing goes this way, and what could, at some lengths, is noted by `cost_of`'s measure."""
    noted: list[tuple[int, int]] = []
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


def cost_of(noted: list[tuple[int, int]]) -> ScoreCost:
    """Of a network whose pass was noted."""
    if not noted:
        return ScoreCost()
    pair_bytes, most_bytes = max(noted)
    return ScoreCost(pair_bytes=pair_bytes, num_layers=len(noted), most_bytes=most_bytes)


__all__ = ("ShortQueries", "cost_of", "noting")
