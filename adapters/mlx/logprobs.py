"""Log probabilities of tokens and of the likeliest alternatives, in the model's own distribution."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import cast

import mlx.core as mx

from domain.stream import TokenLogprob


@dataclass(frozen=True, slots=True)
class LogprobArrays:
    """Log probabilities of the rows that asked, lazy: `chosen` [n], `top_ids` and `top_values` [n, k] unordered.

    `rows`: the row of each entry, None once that row has left. `num_tops`: how many alternatives each wants.
    """

    rows: tuple[int | None, ...]
    num_tops: tuple[int, ...]
    chosen: mx.array
    top_ids: mx.array | None = None
    top_values: mx.array | None = None

    @classmethod
    def of(
        cls, logits: mx.array, tokens: mx.array, rows: tuple[int | None, ...], num_tops: tuple[int, ...]
    ) -> "LogprobArrays":
        """From the logits [n, vocab] of any dtype that chose `tokens` [n], or should have."""
        logits = logits.astype(mx.float32)
        normal = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(normal, tokens[:, None], axis=-1)[:, 0]
        count = min(max(num_tops), normal.shape[-1])
        if not count:
            return cls(rows, num_tops, chosen)
        top_ids = mx.argpartition(-normal, kth=count - 1, axis=-1)[:, :count]
        return cls(rows, num_tops, chosen, top_ids, mx.take_along_axis(normal, top_ids, axis=-1))

    def arrays(self) -> list[mx.array]:
        """Everything to evaluate."""
        return [array for array in (self.chosen, self.top_ids, self.top_values) if array is not None]

    def renumber(self, new_row: Mapping[int, int]) -> "LogprobArrays":
        """The same values for rows that moved; a row without a new number has left."""
        rows = tuple(None if row is None else new_row.get(row) for row in self.rows)
        return LogprobArrays(rows, self.num_tops, self.chosen, self.top_ids, self.top_values)

    def read(self, tokens: Sequence[int]) -> dict[int, TokenLogprob]:
        """Wait for them; by row, of `tokens` in the order of rows."""
        chosen = cast(list[float], self.chosen.tolist())
        ids: list[list[int]] = [[]] * len(chosen)
        values: list[list[float]] = [[]] * len(chosen)
        if self.top_ids is not None and self.top_values is not None:
            ids = cast(list[list[int]], self.top_ids.tolist())
            values = cast(list[list[float]], self.top_values.tolist())
        found: dict[int, TokenLogprob] = {}
        for index, (row, count) in enumerate(zip(self.rows, self.num_tops, strict=True)):
            if row is not None:
                possible = [pair for pair in zip(ids[index], values[index], strict=True) if pair[1] > -inf]
                ranked = sorted(possible, key=lambda pair: (-pair[1], pair[0]))
                found[row] = TokenLogprob(tokens[row], chosen[index], tuple(ranked[:count]))
        return found


__all__ = ("LogprobArrays",)
