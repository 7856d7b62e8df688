"""Rows whose answers may not end yet: the tokens that would end them are suppressed.

Where a grammar allows only the end, it may come: nothing else could.
"""

from collections.abc import Sequence

import mlx.core as mx

from adapters.mlx.sampler_row import SamplerRow


class MinTokens:
    """Of a fixed list of rows, from where they are. Compute thread only."""

    def __init__(self, rows: Sequence[SamplerRow]) -> None:
        self._rows = tuple(rows)
        self._num_missing = [row.min_tokens - row.num_sampled for row in rows]
        self._num_steps = max(self._num_missing, default=0)
        self._known: tuple[list[bool], mx.array] | None = None

    def suppressed(self, step: int) -> mx.array | None:
        """bool [rows, vocab], True for what may not be the token of this step, the first being 0. None: all may. Waits
        for masks of rows that a grammar holds; raises what a constraint does."""
        if step >= self._num_steps:
            return None
        must_go_on = [missing > step for missing in self._num_missing]
        for index, row in enumerate(self._rows):
            if row.constraint is not None and must_go_on[index]:
                must_go_on[index] = not row.constraint.allowed().must_end
        if self._known is None or self._known[0] != must_go_on:
            ends = [row.ends if is_held else None for row, is_held in zip(self._rows, must_go_on, strict=True)]
            found = next((one for one in ends if one is not None), None)
            if found is None:
                return None
            none = mx.zeros_like(found)
            self._known = must_go_on, mx.stack([none if one is None else one for one in ends])
        return self._known[1]


__all__ = ("MinTokens",)
