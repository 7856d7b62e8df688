"""Choosing tokens for a decode group: every row by its own settings, all rows in a few vectorised operations.

A row's choice depends on its own logits, settings, history and seed alone. Settings are arrays with one entry a row;
a row that does not use a filter has a neutral entry that leaves its logits bit for bit as they were. The noise of
token `i` comes from an explicit key made of (seed, i), so that the same seed gives the same answer in any company.

Order, as vLLM's: bias, penalties, suppression of end-of-sequence; temperature, top-k, top-p (over what top-k left),
min-p, then the largest of logits plus Gumbel noise. Everything is lazy: the caller evaluates, so that the next forward
pass can already be queued on tokens nobody has seen.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from adapters.mlx.arrays import add_at, from_numpy, map_rows
from adapters.mlx.sampled import LogprobArrays, Sampled
from application.ports.compute import DecodeStart
from domain.sampling import SamplingParams

_MASK64 = 2**64 - 1
_SMALL_TOP_K = 256
"""Up to here the largest k logits are found by partition instead of sorting the vocabulary."""


def noise_key(seed: int, index: int) -> tuple[int, int]:
    """The MLX random key of token `index` under `seed`: a 64-bit mix of both, as two 32-bit words."""
    mixed = (seed * 0x9E3779B97F4A7C15 + index + 1) & _MASK64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) & _MASK64
    mixed ^= mixed >> 31
    return mixed >> 32, mixed & 0xFFFFFFFF


class SamplerRow:
    """One sequence's sampling: its settings and what it has generated. `num_sampled` counts tokens chosen so far.

    `counts`: float32 [vocab], how often each token was generated; lazy, and only kept for rows with penalties.
    """

    __slots__ = ("bias", "counts", "in_prompt", "min_tokens", "num_sampled", "params", "seed")

    def __init__(self, start: DecodeStart, vocab_size: int) -> None:
        self.params: SamplingParams = start.sampling
        self.seed = start.seed
        self.min_tokens = start.min_tokens
        self.num_sampled = 0
        self.params.check_vocabulary(vocab_size)
        self.bias: mx.array | None = None
        self.counts: mx.array | None = None
        self.in_prompt: mx.array | None = None
        if self.params.logit_bias:
            bias = np.zeros(vocab_size, np.float32)
            for token_id, value in self.params.logit_bias:
                bias[token_id] = value
            self.bias = from_numpy(bias)
        if self.params.has_penalties:
            seen = np.zeros(vocab_size, np.bool_)
            seen[np.asarray([id for id in start.prompt_ids if 0 <= id < vocab_size], dtype=np.int64)] = True
            self.in_prompt = from_numpy(seen)
            self.counts = mx.zeros(vocab_size, mx.float32)

    def is_plain_at(self, index: int) -> bool:
        """True when token `index` is the largest logit and nothing else."""
        return (
            self.params.is_greedy
            and self.bias is None
            and self.counts is None
            and self.params.num_logprobs is None
            and index >= self.min_tokens
        )


def _column(rows: Sequence[SamplerRow], value: Callable[[SamplingParams], float]) -> mx.array:
    return mx.array([[value(row.params)] for row in rows], dtype=mx.float32)


class GroupSampler:
    """Samples for a fixed list of rows. Build a new one when the rows change, after `detach`. Compute thread only."""

    def __init__(self, rows: Sequence[SamplerRow], eos_mask: mx.array) -> None:
        """`eos_mask`: bool [vocab], True at the end-of-sequence ids."""
        self._rows = list(rows)
        self._eos_mask = eos_mask
        params = [row.params for row in self._rows]
        self._all_greedy = all(param.is_greedy for param in params)
        self._greedy = mx.array([param.is_greedy for param in params])
        self._any_greedy = any(param.is_greedy for param in params)
        self._penalties = _Penalties(self._rows) if any(row.counts is not None for row in self._rows) else None
        self._bias = self._stack_bias()
        self._filters = None if self._all_greedy else _Filters(self._rows)
        self._asking = tuple(i for i, param in enumerate(params) if param.num_logprobs is not None)
        self._num_tops = tuple(params[row].num_logprobs or 0 for row in self._asking)

    def sample(self, logits: mx.array) -> Sampled:
        """Choose from logits [rows, vocab]. Nothing is recorded when this raises."""
        if all(row.is_plain_at(row.num_sampled) for row in self._rows):
            sampled = Sampled(mx.argmax(logits, axis=-1))
        else:
            sampled = self._sample(logits.astype(mx.float32))
        if self._penalties is not None:
            self._penalties.count(sampled.tokens)
        for row in self._rows:
            row.num_sampled += 1
        return sampled

    def detach(self) -> None:
        """Hand each row its own history back, before the rows part."""
        if self._penalties is not None:
            self._penalties.hand_back(self._rows)

    def history(self) -> list[mx.array]:
        """Lazy state that grows with each step; evaluated with the tokens so that its graph stays short."""
        return [] if self._penalties is None else [self._penalties.counts]

    def _stack_bias(self) -> mx.array | None:
        found = next((row.bias for row in self._rows if row.bias is not None), None)
        if found is None:
            return None
        none = mx.zeros_like(found)
        return mx.stack([none if row.bias is None else row.bias for row in self._rows])

    def _sample(self, logits: mx.array) -> Sampled:
        adjusted = logits if self._bias is None else logits + self._bias
        if self._penalties is not None:
            adjusted = self._penalties.apply(adjusted)
        banned = [row.num_sampled < row.min_tokens for row in self._rows]
        if any(banned):
            adjusted = mx.where(mx.array(banned)[:, None] & self._eos_mask[None], -mx.inf, adjusted)
        tokens = mx.argmax(adjusted, axis=-1)
        if self._filters is not None:
            drawn = mx.argmax(self._filters.apply(adjusted) + self._noise(logits.shape[-1]), axis=-1)
            tokens = mx.where(self._greedy, tokens, drawn) if self._any_greedy else drawn
        return Sampled(tokens, (self._logprobs(logits, tokens),) if self._asking else ())

    def _noise(self, vocab_size: int) -> mx.array:
        keys = mx.array([noise_key(row.seed, row.num_sampled) for row in self._rows], dtype=mx.uint32)

        def draw(key: mx.array) -> mx.array:
            return mx.random.gumbel((vocab_size,), key=key)

        return map_rows(draw, keys)

    def _logprobs(self, logits: mx.array, tokens: mx.array) -> LogprobArrays:
        """Of the model's own distribution, before penalties and temperature."""
        rows = mx.array(self._asking)
        asked = logits[rows]
        normal = asked - mx.logsumexp(asked, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(normal, tokens[rows][:, None], axis=-1)[:, 0]
        count = min(max(self._num_tops), normal.shape[-1])
        if not count:
            return LogprobArrays(self._asking, self._num_tops, chosen)
        top_ids = mx.argpartition(-normal, kth=count - 1, axis=-1)[:, :count]
        top_values = mx.take_along_axis(normal, top_ids, axis=-1)
        return LogprobArrays(self._asking, self._num_tops, chosen, top_ids, top_values)


class _Penalties:
    """Repetition, presence and frequency penalties of all rows, with their token counts [rows, vocab]."""

    def __init__(self, rows: Sequence[SamplerRow]) -> None:
        with_counts = next(row for row in rows if row.counts is not None)
        assert with_counts.counts is not None
        assert with_counts.in_prompt is not None
        no_counts, no_prompt = mx.zeros_like(with_counts.counts), mx.zeros_like(with_counts.in_prompt)
        self.counts = mx.stack([no_counts if row.counts is None else row.counts for row in rows])
        self._in_prompt = mx.stack([no_prompt if row.in_prompt is None else row.in_prompt for row in rows])
        self._repetition = _column(rows, lambda params: params.repetition_penalty)
        self._presence = _column(rows, lambda params: params.presence_penalty)
        self._frequency = _column(rows, lambda params: params.frequency_penalty)
        self._row_index = mx.arange(len(rows))

    def apply(self, logits: mx.array) -> mx.array:
        generated = self.counts > 0
        seen = self._in_prompt | generated
        repeated = mx.where(logits > 0, logits / self._repetition, logits * self._repetition)
        logits = mx.where(seen, repeated, logits)
        return logits - self._frequency * self.counts - self._presence * generated

    def count(self, tokens: mx.array) -> None:
        self.counts = add_at(self.counts, self._row_index, tokens, 1.0)

    def hand_back(self, rows: Sequence[SamplerRow]) -> None:
        for index, row in enumerate(rows):
            if row.counts is not None:
                row.counts = self.counts[index]


class _Filters:
    """Temperature, top-k, top-p and min-p as one threshold a row: what lies below it cannot be drawn."""

    def __init__(self, rows: Sequence[SamplerRow]) -> None:
        params = [row.params for row in rows]
        self._temperature = _column(rows, lambda param: param.temperature or 1.0)
        self._has_top_k = any(param.top_k for param in params)
        self._has_top_p = any(param.top_p < 1 for param in params)
        self._has_min_p = any(param.min_p for param in params)
        self._top_k = mx.array([[param.top_k] for param in params], dtype=mx.int32)
        self._top_p = _column(rows, lambda param: param.top_p)
        self._log_min_p = mx.log(_column(rows, lambda param: param.min_p))
        all_small = all(0 < param.top_k <= _SMALL_TOP_K or param.is_greedy for param in params)
        self._num_sorted = max((param.top_k for param in params), default=0) if all_small else 0

    def apply(self, logits: mx.array) -> mx.array:
        scaled = logits / self._temperature
        threshold: mx.array | None = None
        if self._has_top_k or self._has_top_p:
            threshold = self._rank_threshold(scaled)
        if self._has_min_p:
            lowest = mx.max(scaled, axis=-1, keepdims=True) + self._log_min_p
            threshold = lowest if threshold is None else mx.maximum(threshold, lowest)
        return scaled if threshold is None else mx.where(scaled >= threshold, scaled, -mx.inf)

    def _rank_threshold(self, scaled: mx.array) -> mx.array:
        """[rows, 1]: the smallest logit that top-k and then top-p keep."""
        vocab_size = scaled.shape[-1]
        if 0 < self._num_sorted < vocab_size:
            ranked = mx.sort(mx.topk(scaled, self._num_sorted, axis=-1), axis=-1)[..., ::-1]
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
        lowest = mx.take_along_axis(ranked, kept - 1, axis=-1)
        unlimited = (self._top_k == 0) & (self._top_p >= 1)
        return mx.where(unlimited, -mx.inf, lowest)


__all__ = ("GroupSampler", "SamplerRow", "noise_key")
