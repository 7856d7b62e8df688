"""Temperature, top-k, top-p and min-p as one threshold a row: what lies below it cannot be drawn.

Ranking costs far more than all the rest (a sort of 152,000 logits takes a CPU 20 ms a row), so rows are told apart by
how much of it they need; see `ranking_of`. A row's threshold depends on its own logits and settings alone.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from domain.sampling import SamplingParams

SMALL_TOP_K = 256
"""Up to here the largest k logits are found by partition instead of sorting the vocabulary."""

NO_RANKING, WHOLE_RANKING = 0, -1


def ranking_of(params: SamplingParams) -> int:
    """How many of the largest logits have to be put in order: NO_RANKING, a small top-k, or WHOLE_RANKING."""
    if 0 < params.top_k <= SMALL_TOP_K:
        return params.top_k
    return WHOLE_RANKING if params.top_k or params.top_p < 1 else NO_RANKING


def column(params: Sequence[SamplingParams], value: Callable[[SamplingParams], float]) -> mx.array:
    """float32 [rows, 1]: one setting of every row."""
    return mx.array([[value(one)] for one in params], dtype=mx.float32)


class TokenFilters:
    """For rows that are not greedy and share a `ranking_of`."""

    def __init__(self, params: Sequence[SamplingParams]) -> None:
        self._temperature = column(params, lambda param: param.temperature or 1.0)
        self._ranking = ranking_of(params[0])
        self._has_top_p = any(param.top_p < 1 for param in params)
        self._has_min_p = any(param.min_p for param in params)
        self._top_k = mx.array([[param.top_k] for param in params], dtype=mx.int32)
        self._top_p = column(params, lambda param: param.top_p)
        self._log_min_p = mx.log(column(params, lambda param: param.min_p))

    def apply(self, logits: mx.array) -> mx.array:
        """float32 [rows, vocab], by temperature; -inf for what cannot be drawn."""
        scaled = logits / self._temperature
        threshold: mx.array | None = None
        if self._ranking != NO_RANKING:
            threshold = self._rank_threshold(scaled)
        if self._has_min_p:
            lowest = mx.max(scaled, axis=-1, keepdims=True) + self._log_min_p
            threshold = lowest if threshold is None else mx.maximum(threshold, lowest)
        return scaled if threshold is None else mx.where(scaled >= threshold, scaled, -mx.inf)

    def _rank_threshold(self, scaled: mx.array) -> mx.array:
        """[rows, 1]: the smallest logit that top-k and then top-p keep."""
        if 0 < self._ranking < scaled.shape[-1]:
            ranked = mx.sort(mx.topk(scaled, self._ranking, axis=-1), axis=-1)[..., ::-1]
        else:
            ranked = mx.sort(scaled, axis=-1)[..., ::-1]
        width = ranked.shape[-1]
        top_k = mx.where(self._top_k > 0, mx.minimum(self._top_k, width), width)
        ranked = mx.where(mx.arange(width)[None] < top_k, ranked, -mx.inf)
        kept = top_k
        if self._has_top_p:
            shares = mx.softmax(ranked, axis=-1, precise=True)
            before = mx.cumsum(shares, axis=-1) - shares
            within = mx.sum((before < self._top_p) & (ranked > -mx.inf), axis=-1, keepdims=True)
            kept = mx.where(self._top_p < 1, mx.maximum(within, 1), top_k)
        return mx.take_along_axis(ranked, kept - 1, axis=-1)


__all__ = ("NO_RANKING", "SMALL_TOP_K", "WHOLE_RANKING", "TokenFilters", "column", "ranking_of")
