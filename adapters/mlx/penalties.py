"""Repetition, presence and frequency penalties of a few rows, with their token counts [rows, vocab]."""

from collections.abc import Sequence

import mlx.core as mx

from adapters.mlx.arrays import add_at
from adapters.mlx.sampler_row import SamplerRow
from adapters.mlx.token_filters import column


class Penalties:
    """At least one row has some; the others have neutral entries. `counts` is lazy and grows with each step."""

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
        """Give each row its own history."""
        for index, row in enumerate(rows):
            if row.counts is not None:
                row.counts = self.counts[index]


__all__ = ("Penalties",)
