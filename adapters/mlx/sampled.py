"""What one decode step chose: lazy arrays while the step is in flight, plain values once somebody asks.

Rows join and leave a group while a step is in flight, so a step's outcome can be joined and narrowed like the group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from adapters.mlx.arrays import token_array
from adapters.mlx.logprobs import LogprobArrays
from domain.stream import TokenLogprob


@dataclass(frozen=True, slots=True)
class Sampled:
    """One step's outcome. `tokens`: uint32 [rows], lazy."""

    tokens: mx.array
    logprobs: tuple[LogprobArrays, ...] = ()

    def arrays(self) -> list[mx.array]:
        """Everything to evaluate."""
        found = [self.tokens]
        for part in self.logprobs:
            found += part.arrays()
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
            found.update(part.read(tokens))
        return tokens, found


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


__all__ = ("Sampled", "join")
