"""Choosing tokens for a decode group: every row by its own settings, alike rows in a few vectorised operations.

A row's choice depends on its own logits, settings, history and seed alone: rows are divided into lanes by the work they
need, and within a lane a row that does not use a setting has a neutral entry that leaves its logits bit for bit as they
were. The noise of token `i` comes from an explicit key made of (seed, i). So the same logits and seed give the same
token in any company.

Order, as vLLM's: a grammar's mask, bias, penalties, suppression of end-of-sequence; temperature, top-k, top-p (over
what top-k left), min-p, then the largest of logits plus Gumbel noise. Everything but a grammar's mask is lazy: the
caller evaluates, so that the next forward pass can already be queued on tokens nobody has seen.
"""

from collections.abc import Sequence

import mlx.core as mx

from adapters.mlx.logprobs import LogprobArrays
from adapters.mlx.sampled import Sampled
from adapters.mlx.sampler_row import SamplerRow
from adapters.mlx.sampling_lane import lanes_of
from adapters.mlx.token_masks import TokenMasks


class GroupSampler:
    """Samples for a fixed list of rows. Build a new one when the rows change, after `detach`. Compute thread only.

    `is_held`: a grammar holds some row."""

    def __init__(self, rows: Sequence[SamplerRow]) -> None:
        self._rows = tuple(rows)
        self._lanes = lanes_of(rows)
        self._indices = [mx.array(lane.members) for lane in self._lanes]
        order = [index for lane in self._lanes for index in lane.members]
        self._places = mx.array([order.index(index) for index in range(len(order))])
        wanted = [row.params.num_logprobs for row in rows]
        self._asking = tuple(index for index, count in enumerate(wanted) if count is not None)
        self._masks_of_asking = TokenMasks([self._rows[index] for index in self._asking])
        self._num_tops = tuple(count for count in wanted if count is not None)
        self.is_held = any(row.constraint is not None for row in rows)

    def sample(self, logits: mx.array) -> Sampled:
        """Choose from logits [rows, vocab]. Nothing is recorded when this raises."""
        if len(self._lanes) == 1:
            chosen = [self._lanes[0].sample(logits)]
            tokens = chosen[0]
        else:
            parts = zip(self._lanes, self._indices, strict=True)
            chosen = [lane.sample(logits[indices]) for lane, indices in parts]
            tokens = mx.concatenate(chosen)[self._places]
        sampled = Sampled.of(tokens, self._logprobs(logits, tokens) if self._asking else None, self._asking)
        for lane, part in zip(self._lanes, chosen, strict=True):
            lane.record(part)
        return sampled

    def detach(self) -> None:
        """Hand each row its own history back, before the rows part."""
        for lane in self._lanes:
            lane.detach()

    def history(self) -> list[mx.array]:
        """Lazy state that grows with each step; evaluated with the tokens so that its graph stays short."""
        return [array for lane in self._lanes for array in lane.history()]

    def _logprobs(self, logits: mx.array, tokens: mx.array) -> LogprobArrays:
        """Of the model's own distribution over what a grammar allows, before penalties and temperature."""
        rows = mx.array(self._asking)
        asked = self._masks_of_asking.apply(logits[rows].astype(mx.float32))
        return LogprobArrays.of(asked, tokens[rows], self._num_tops)


__all__ = ("GroupSampler",)
