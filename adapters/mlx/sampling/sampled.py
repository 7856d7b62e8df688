"""The sampled tokens of a decode step, lazy while the step is in flight; and log probabilities, a prompt's included.

The host reads one array of 32-bit words a step, once:

    tokens [rows]  |  of rows with num_logprobs: chosen [n]  |  ids of the likeliest [n, k]  |  their values [n, k]

Rows join and leave a group while a step is in flight, so a step's tokens can be joined and narrowed like the group: the
tokens of the next pass are gathered on the device, and the words stay in the arrays that were queued, in which each row
has a place. So reading never waits for work that was queued later.

Log probabilities are of the model's own distribution. Those of a prompt are computed from the logits of its chunks, a
few rows at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.runtime.arrays import evaluate, read_back, token_array
from application.ports.compute import PromptScores
from domain.request.stream import TokenLogprob

SLICE_BYTES = 16 << 20
"""Size of one float32 copy of a slice of logits; finding the likeliest tokens takes four such copies."""


@dataclass(frozen=True, slots=True)
class LogprobArrays:
    """Log probabilities of n tokens, lazy: `chosen` [n], `top_ids` and `top_values` [n, k] unordered, None for k = 0.

    `num_tops`: the number of alternatives of each token.
    """

    num_tops: tuple[int, ...]
    chosen: mx.array
    top_ids: mx.array | None = None
    top_values: mx.array | None = None

    @classmethod
    def of(cls, logits: mx.array, tokens: mx.array, num_tops: tuple[int, ...]) -> "LogprobArrays":
        """Log probabilities of `tokens` [n] by their logits [n, vocab], of any dtype."""
        logits = logits.astype(mx.float32)
        normal = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(normal, tokens[:, None], axis=-1)[:, 0]
        count = min(max(num_tops), normal.shape[-1])
        if not count:
            return cls(num_tops, chosen)
        top_ids = mx.argpartition(-normal, kth=count - 1, axis=-1)[:, :count]
        return cls(num_tops, chosen, top_ids, mx.take_along_axis(normal, top_ids, axis=-1))

    def words(self) -> list[mx.array]:
        """uint32, flat, in the order above."""
        found = [self.chosen.view(mx.uint32)]
        if self.top_ids is not None and self.top_values is not None:
            found += [mx.flatten(self.top_ids), mx.flatten(self.top_values).view(mx.uint32)]
        return found


def token_logprobs(words: NDArray[np.uint32], token_ids: Sequence[int], num_tops: Sequence[int]) -> list[TokenLogprob]:
    """The log probabilities that `LogprobArrays.words` hold of these tokens, in order. Alternatives of probability 0
    are left out."""
    num_tokens = len(token_ids)
    chosen, rest = words[:num_tokens].view(np.float32).tolist(), words[num_tokens:]
    ids = rest[: len(rest) // 2].reshape(num_tokens, -1)
    values = rest[len(rest) // 2 :].view(np.float32).reshape(num_tokens, -1)
    order = np.lexsort((ids, -values), axis=-1)
    likeliest = np.take_along_axis(ids, order, axis=-1).tolist()
    ordered = np.take_along_axis(values, order, axis=-1).tolist()
    counts = np.minimum(np.sum(values > -np.inf, axis=-1), num_tops).tolist()
    rows = zip(token_ids, cast(list[float], chosen), likeliest, ordered, counts, strict=True)
    return [
        TokenLogprob(token, logprob, tuple(zip(top[:count], top_values[:count], strict=True)))
        for token, logprob, top, top_values, count in rows
    ]


class Outcome:
    """The words of one queued step. `words`: uint32, the token of every row, then the log probabilities of the rows
    `asking`."""

    __slots__ = ("_num_rows", "_num_tops", "_read", "asking", "words")

    def __init__(self, tokens: mx.array, logprobs: LogprobArrays | None, asking: Sequence[int]) -> None:
        self.words = tokens if logprobs is None else mx.concatenate([tokens, *logprobs.words()])
        self.asking = tuple(asking)
        self._num_rows = tokens.shape[0]
        self._num_tops = () if logprobs is None else logprobs.num_tops
        self._read: NDArray[np.uint32] | None = None

    def tokens(self) -> list[int]:
        """The token of every row. The first call waits."""
        tokens: list[int] = self._host()[: self._num_rows].tolist()
        return tokens

    def logprobs(self) -> dict[int, TokenLogprob]:
        """Log probabilities by row. The first call waits."""
        if not self.asking:
            return {}
        tokens = self.tokens()
        asked = token_logprobs(self._host()[self._num_rows :], [tokens[row] for row in self.asking], self._num_tops)
        return dict(zip(self.asking, asked, strict=True))

    def _host(self) -> NDArray[np.uint32]:
        if self._read is None:
            self._read = read_back(self.words)
        return self._read


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens of one step. `fed`: uint32 [rows, 1], lazy, for the next pass. `rows`: for each row, the index of its
    outcome and its row there."""

    fed: mx.array
    outcomes: tuple[Outcome, ...]
    rows: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, tokens: mx.array, logprobs: LogprobArrays | None = None, asking: Sequence[int] = ()) -> "Sampled":
        """`logprobs`: of the rows `asking`, in their order."""
        outcome = Outcome(tokens, logprobs, asking)
        return cls(tokens[:, None], (outcome,), tuple(zip(repeat(0), range(tokens.shape[0]))))

    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate."""
        return [self.fed, *(one.words for one in self.outcomes)]

    def narrow(self, rows: Sequence[int]) -> "Sampled":
        """The tokens of these rows, in this order."""
        return Sampled(self.fed[token_array(rows)], self.outcomes, tuple(self.rows[row] for row in rows))

    def token_ids(self) -> list[int]:
        """Waits for the step; returns the token of every row."""
        tokens = [one.tokens() for one in self.outcomes]
        return [tokens[outcome][row] for outcome, row in self.rows]

    def read(self) -> tuple[list[int], dict[int, TokenLogprob]]:
        """Waits for the step; returns the token of every row, and log probabilities by row."""
        found = [one.logprobs() for one in self.outcomes]
        if not any(found):
            return self.token_ids(), {}
        asked = {place: found[outcome][row] for place, (outcome, row) in enumerate(self.rows) if row in found[outcome]}
        return self.token_ids(), asked


def join(parts: Sequence[Sampled]) -> Sampled:
    """The tokens of several groups as one, in order."""
    outcomes: list[Outcome] = []
    rows: list[tuple[int, int]] = []
    for part in parts:
        rows += [(outcome + len(outcomes), row) for outcome, row in part.rows]
        outcomes += part.outcomes
    return Sampled(mx.concatenate([part.fed for part in parts]), tuple(outcomes), tuple(rows))


def score_chunk(
    logits: mx.array, token_ids: Sequence[int], before: mx.array | None, num_tops: int
) -> tuple[PromptScores, mx.array]:
    """Returns the scores of a chunk from its logits [tokens, vocab], and a copy of its last row, which scores the next
    chunk's first token. `before`: that row of the chunk before; None if it was not kept."""
    scores: list[TokenLogprob | None] = [None]
    if before is not None:
        scores = list(_score(before[None], token_ids[:1], num_tops))
    rows = max(1, SLICE_BYTES // (4 * logits.shape[-1]))
    for start in range(0, len(token_ids) - 1, rows):
        targets = token_ids[start + 1 : start + 1 + rows]
        scores += _score(logits[start : start + len(targets)], targets, num_tops)
    last = mx.contiguous(logits[-1])  # a view would keep all the others
    evaluate([last])
    return scores, last


def _score(logits: mx.array, token_ids: Sequence[int], num_tops: int) -> list[TokenLogprob]:
    """Scores each token by its own row."""
    wanted, tokens = (num_tops,) * len(token_ids), token_array(token_ids)
    found = LogprobArrays.of(logits, tokens, wanted)
    ranks = 1 + mx.sum(logits > mx.take_along_axis(logits, tokens[:, None], axis=-1), axis=-1)
    words = read_back(mx.concatenate([ranks.astype(mx.uint32), *found.words()]))
    scores = token_logprobs(words[len(token_ids) :], token_ids, wanted)
    return [replace(score, rank=rank) for score, rank in zip(scores, words[: len(token_ids)].tolist(), strict=True)]
