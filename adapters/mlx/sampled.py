"""What one decode step chose: lazy arrays while the step is in flight, plain values once somebody asks.

Rows join and leave a group while a step is in flight, so a step's outcome can be joined and narrowed like the group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import cast

import mlx.core as mx

from adapters.mlx.arrays import token_array
from domain.stream import TokenLogprob


@dataclass(frozen=True, slots=True)
class LogprobArrays:
    """Log probabilities of the rows that asked, lazy: `chosen` [n], `top_ids` and `top_values` [n, k] unordered.

    `rows`: the group row of each entry, None once that row has left. `num_tops`: how many alternatives each wants.
    """

    rows: tuple[int | None, ...]
    num_tops: tuple[int, ...]
    chosen: mx.array
    top_ids: mx.array | None = None
    top_values: mx.array | None = None

    def renumber(self, new_row: Mapping[int, int]) -> "LogprobArrays":
        """The same values for rows that moved; a row without a new number has left."""
        rows = tuple(None if row is None else new_row.get(row) for row in self.rows)
        return LogprobArrays(rows, self.num_tops, self.chosen, self.top_ids, self.top_values)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One step's outcome. `tokens`: uint32 [rows], lazy."""

    tokens: mx.array
    logprobs: tuple[LogprobArrays, ...] = ()

    def arrays(self) -> list[mx.array]:
        """Everything to evaluate."""
        found = [self.tokens]
        for part in self.logprobs:
            found += [array for array in (part.chosen, part.top_ids, part.top_values) if array is not None]
        return found

    def narrow(self, rows: Sequence[int]) -> "Sampled":
        """Only these rows, in this order."""
        new_row = {old: new for new, old in enumerate(rows)}
        parts = tuple(part.renumber(new_row) for part in self.logprobs)
        left = tuple(part for part in parts if any(row is not None for row in part.rows))
        return Sampled(self.tokens[token_array(rows)], left)

    def read(self) -> tuple[list[int], dict[int, TokenLogprob]]:
        """Wait for the step; the token of every row, and the log probabilities of the rows that asked."""
        tokens = cast(list[int], self.tokens.tolist())
        found: dict[int, TokenLogprob] = {}
        for part in self.logprobs:
            _read_logprobs(part, tokens, found)
        return tokens, found


def _read_logprobs(part: LogprobArrays, tokens: Sequence[int], found: dict[int, TokenLogprob]) -> None:
    chosen = cast(list[float], part.chosen.tolist())
    ids: list[list[int]] = [[]] * len(chosen)
    values: list[list[float]] = [[]] * len(chosen)
    if part.top_ids is not None and part.top_values is not None:
        ids = cast(list[list[int]], part.top_ids.tolist())
        values = cast(list[list[float]], part.top_values.tolist())
    for index, (row, count) in enumerate(zip(part.rows, part.num_tops, strict=True)):
        if row is not None:
            possible = [pair for pair in zip(ids[index], values[index], strict=True) if pair[1] > -inf]
            ranked = sorted(possible, key=lambda pair: (-pair[1], pair[0]))
            found[row] = TokenLogprob(tokens[row], chosen[index], tuple(ranked[:count]))


def join(parts: Sequence[Sampled]) -> Sampled:
    """The outcomes of several row runs as one, in order."""
    logprobs: list[LogprobArrays] = []
    offset = 0
    for part in parts:
        count = part.tokens.shape[0]
        shifted = {row: row + offset for row in range(count)}
        logprobs += [arrays.renumber(shifted) for arrays in part.logprobs]
        offset += count
    return Sampled(mx.concatenate([part.tokens for part in parts]), tuple(logprobs))


__all__ = ("LogprobArrays", "Sampled", "join")
