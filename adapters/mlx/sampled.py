"""What one decode step chose: lazy arrays while the step is in flight, plain values once somebody asks.

All that the host wants of a step is one array, read once. Rows join and leave a group while a step is in flight, so a
step's outcome can be joined and narrowed like the group: what is fed to the next pass is gathered on the device, and
what is read stays in the arrays that were queued, of which each row remembers its place. So reading never waits for
what was queued since.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.arrays import read_back, token_array
from adapters.mlx.logprobs import LogprobArrays, told
from domain.stream import TokenLogprob


class Outcome:
    """Of one queueing. `words`: uint32, the token of every row, then the log probabilities of the rows `asking`. To be
    read once it is queued."""

    __slots__ = ("_num_rows", "_num_tops", "_told", "asking", "words")

    def __init__(self, tokens: mx.array, logprobs: LogprobArrays | None, asking: Sequence[int]) -> None:
        self.words = tokens if logprobs is None else mx.concatenate([tokens, *logprobs.words()])
        self.asking = tuple(asking)
        self._num_rows = tokens.shape[0]
        self._num_tops = () if logprobs is None else logprobs.num_tops
        self._told: NDArray[np.uint32] | None = None

    def tokens(self) -> list[int]:
        """Of every row. Waits, the first time."""
        tokens: list[int] = self._host()[: self._num_rows].tolist()
        return tokens

    def logprobs(self) -> dict[int, TokenLogprob]:
        """By row. Waits, the first time."""
        if not self.asking:
            return {}
        tokens = self.tokens()
        asked = told(self._host()[self._num_rows :], [tokens[row] for row in self.asking], self._num_tops)
        return dict(zip(self.asking, asked, strict=True))

    def _host(self) -> NDArray[np.uint32]:
        if self._told is None:
            self._told = read_back(self.words)
        return self._told


@dataclass(frozen=True, slots=True)
class Sampled:
    """One step's outcome. `fed`: uint32 [rows, 1], lazy: the tokens as the next pass takes them. `rows`: of each row,
    which outcome it is in and its row there."""

    fed: mx.array
    outcomes: tuple[Outcome, ...]
    rows: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, tokens: mx.array, logprobs: LogprobArrays | None = None, asking: Sequence[int] = ()) -> "Sampled":
        """`logprobs`: of the rows `asking`, in their order."""
        outcome = Outcome(tokens, logprobs, asking)
        return cls(tokens[:, None], (outcome,), tuple(zip(repeat(0), range(tokens.shape[0]))))

    def arrays(self) -> list[mx.array]:
        """Everything to evaluate."""
        return [self.fed, *(one.words for one in self.outcomes)]

    def narrow(self, rows: Sequence[int]) -> "Sampled":
        """Only these rows, in this order."""
        return Sampled(self.fed[token_array(rows)], self.outcomes, tuple(self.rows[row] for row in rows))

    def token_ids(self) -> list[int]:
        """Wait for the step; the token of every row."""
        tokens = [one.tokens() for one in self.outcomes]
        return [tokens[outcome][row] for outcome, row in self.rows]

    def read(self) -> tuple[list[int], dict[int, TokenLogprob]]:
        """Wait for the step; the token of every row, and the log probabilities of the rows that asked."""
        found = [one.logprobs() for one in self.outcomes]
        if not any(found):
            return self.token_ids(), {}
        asked = {place: found[outcome][row] for place, (outcome, row) in enumerate(self.rows) if row in found[outcome]}
        return self.token_ids(), asked


def join(parts: Sequence[Sampled]) -> Sampled:
    """The outcomes of several row runs as one, in order."""
    outcomes: list[Outcome] = []
    rows: list[tuple[int, int]] = []
    for part in parts:
        rows += [(outcome + len(outcomes), row) for outcome, row in part.rows]
        outcomes += part.outcomes
    return Sampled(mx.concatenate([part.fed for part in parts]), tuple(outcomes), tuple(rows))


__all__ = ("Sampled", "join")
