"""The rules by which a sequence's settings change its logits, applied to all rows of a bucket at once.

The order is vLLM's: a grammar's mask, bias, penalties, suppression of end tokens (min_tokens); temperature, top-k,
top-p (of what top-k keeps) and min-p as one threshold a row. A row that does not use a setting has a neutral entry that
leaves its logits unchanged bit for bit."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.runtime.arrays import add_at, from_numpy
from application.ports.compute import DecodeStart
from application.ports.token_constraint import AllowedTokens
from domain.request.sampling import SamplingParams

SMALL_TOP_K = 256
"""The largest k for which the top k logits are found by partition instead of sorting the vocabulary."""

NO_RANKING, WHOLE_RANKING = 0, -1


class SamplerRow:
    """One sequence's sampling: its settings, its history, and the seed of its noise.

    `num_sampled`: tokens chosen so far; a bucket adds its own in `detach`. `counts`: float32 [vocab], how often each
    token was generated; lazy, None without penalties. `ends`: bool [vocab], True at the tokens that end an answer; None
    without `min_tokens`. `end_ids`: these tokens as a set. `constraint`: the grammar's state, None without a grammar.
    """

    __slots__ = (
        "bias",
        "constraint",
        "counts",
        "end_ids",
        "ends",
        "in_prompt",
        "min_tokens",
        "num_sampled",
        "params",
        "seed",
    )

    def __init__(self, start: DecodeStart, vocab_size: int) -> None:
        self.params: SamplingParams = start.sampling
        self.seed = start.seed
        self.min_tokens = start.min_tokens
        self.num_sampled = len(start.output_ids)
        self.constraint, self.end_ids = start.constraint, start.eos_token_ids
        self.params.check_vocabulary(vocab_size)
        self.bias: mx.array | None = None
        self.counts: mx.array | None = None
        self.in_prompt: mx.array | None = None
        self.ends = _marked(start.eos_token_ids, vocab_size) if self.min_tokens else None
        if self.params.logit_bias:
            bias = np.zeros(vocab_size, np.float32)
            for token_id, value in self.params.logit_bias:
                bias[token_id] = value
            self.bias = from_numpy(bias)
        if self.params.has_penalties:
            self.in_prompt = _marked(frozenset(start.prompt_ids), vocab_size)
            self.counts = _counted(start.output_ids, vocab_size)

    @property
    def is_untouched(self) -> bool:
        """True if all further tokens are chosen from unchanged logits."""
        is_long_enough = self.num_sampled >= self.min_tokens
        return self.bias is None and self.counts is None and self.constraint is None and is_long_enough


def _marked(token_ids: frozenset[int], vocab_size: int) -> mx.array:
    marks = np.zeros(vocab_size, np.bool_)
    marks[np.asarray([id for id in token_ids if 0 <= id < vocab_size], dtype=np.int64)] = True
    return from_numpy(marks)


def _counted(token_ids: tuple[int, ...], vocab_size: int) -> mx.array:
    known = np.asarray([id for id in token_ids if 0 <= id < vocab_size], dtype=np.int64)
    return from_numpy(np.bincount(known, minlength=vocab_size).astype(np.float32))


class TokenMasks:
    """Grammar masks of a fixed list of rows: -inf for every token that may not come next.

    Most steps allow the same tokens as the step before (inside a string, any): the mask stays on the device, and only
    rows whose mask changed are unpacked again, by numpy: 14 microseconds for 152,000 tokens.
    """

    def __init__(self, rows: Sequence[SamplerRow]) -> None:
        self._constraints = tuple(
            (index, row.constraint) for index, row in enumerate(rows) if row.constraint is not None
        )
        self._num_rows = len(rows)
        self._known: dict[int, AllowedTokens] = {}
        self._bits: NDArray[np.uint8] | None = None
        self._on_device: mx.array | None = None

    def apply(self, logits: mx.array) -> mx.array:
        """Returns masked logits [rows, vocab] in their dtype; rows without a grammar are unchanged. Waits for the
        masks; raises what a constraint raises."""
        if not self._constraints:
            return logits
        if self._bits is None:
            self._bits = np.ones((self._num_rows, logits.shape[-1]), np.uint8)
        for index, constraint in self._constraints:
            allowed = constraint.allowed()
            if self._known.get(index) is not allowed:
                packed = np.frombuffer(allowed.mask, np.uint8)
                self._on_device = None
                self._bits[index] = np.unpackbits(packed, count=logits.shape[-1], bitorder="little")
                self._known[index] = allowed
        if self._on_device is None:
            self._on_device = from_numpy(self._bits.view(np.bool_))
        return mx.where(self._on_device, logits, -mx.inf)


class MinTokens:
    """`min_tokens` of a fixed list of rows: suppresses the tokens that end an answer, unless a grammar allows no other
    token."""

    def __init__(self, rows: Sequence[SamplerRow]) -> None:
        self._rows = tuple(rows)
        self._num_missing = [row.min_tokens - row.num_sampled for row in rows]
        self._num_steps = max(self._num_missing, default=0)
        self._known: tuple[list[bool], mx.array] | None = None

    def suppressed(self, step: int) -> mx.array | None:
        """bool [rows, vocab], True for tokens suppressed at `step`, the first being 0; None if there are none. Waits
        for the masks of constrained rows; raises what a constraint raises."""
        if step >= self._num_steps:
            return None
        must_go_on = [missing > step for missing in self._num_missing]
        for index, row in enumerate(self._rows):
            if row.constraint is not None and must_go_on[index]:
                must_go_on[index] = not row.constraint.allowed().must_end
        if self._known is None or self._known[0] != must_go_on:
            ends = [row.ends if must else None for row, must in zip(self._rows, must_go_on, strict=True)]
            found = next((one for one in ends if one is not None), None)
            if found is None:
                return None
            none = mx.zeros_like(found)
            self._known = must_go_on, mx.stack([none if one is None else one for one in ends])
        return self._known[1]


class Penalties:
    """Repetition, presence and frequency penalties of rows of which at least one has some. `counts`: float32
    [rows, vocab], lazy; changes with each step."""

    def __init__(self, rows: Sequence[SamplerRow]) -> None:
        with_counts = next(row for row in rows if row.counts is not None)
        assert with_counts.counts is not None
        assert with_counts.in_prompt is not None
        no_counts, no_prompt = mx.zeros_like(with_counts.counts), mx.zeros_like(with_counts.in_prompt)
        self.counts = mx.stack([no_counts if row.counts is None else row.counts for row in rows])
        self._in_prompt = mx.stack([no_prompt if row.in_prompt is None else row.in_prompt for row in rows])
        params = [row.params for row in rows]
        self._repetition = column(params, lambda param: param.repetition_penalty)
        self._presence = column(params, lambda param: param.presence_penalty)
        self._frequency = column(params, lambda param: param.frequency_penalty)
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
        """Writes the counts back to the rows."""
        for index, row in enumerate(rows):
            if row.counts is not None:
                row.counts = self.counts[index]


def ranking_of(params: SamplingParams) -> int:
    """The number of largest logits that have to be sorted: NO_RANKING, a small top-k, or WHOLE_RANKING."""
    if 0 < params.top_k <= SMALL_TOP_K:
        return params.top_k
    return WHOLE_RANKING if params.top_k or params.top_p < 1 else NO_RANKING


def column(params: Sequence[SamplingParams], value: Callable[[SamplingParams], float]) -> mx.array:
    """float32 [rows, 1]: one setting of all rows."""
    return mx.array([[value(one)] for one in params], dtype=mx.float32)


class TokenFilters:
    """Temperature, top-k, top-p and min-p as one threshold a row, below which a token cannot be drawn. The rows are not
    greedy and share a `ranking_of`: sorting costs far more than the rest (152,000 logits take a CPU 20 ms a row)."""

    def __init__(self, params: Sequence[SamplingParams]) -> None:
        self._temperature = column(params, lambda param: param.temperature or 1.0)
        self._ranking = ranking_of(params[0])
        self._has_top_p = any(param.top_p < 1 for param in params)
        self._has_min_p = any(param.min_p for param in params)
        self._top_k = mx.array([[param.top_k] for param in params], dtype=mx.int32)
        self._top_p = column(params, lambda param: param.top_p)
        self._log_min_p = mx.log(column(params, lambda param: param.min_p))

    def apply(self, logits: mx.array) -> mx.array:
        """Returns float32 [rows, vocab], scaled by temperature; -inf for tokens that cannot be drawn."""
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
