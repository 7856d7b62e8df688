"""The sampled tokens of a decode step, lazy while the step is in flight; and log probabilities, a prompt's included.

The host reads one array of 32-bit words a step, once:

    tokens [rows]  |  of rows with num_logprobs: chosen [n]  |  ids of the likeliest [n, k]  |  their values [n, k]

Where rows join or leave a group, the step in flight is read first: moving their state waits for it as well.

Log probabilities are of the model's own distribution. Those of a prompt are computed from the logits of its chunks, a
few rows at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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


class Sampled:
    """The tokens of one step. `fed`: uint32 [rows, 1], for the next pass; lazy until the step is read."""

    __slots__ = ("_asking", "_num_tops", "_read", "_words", "fed")

    def __init__(self, tokens: mx.array, logprobs: LogprobArrays | None = None, asking: Sequence[int] = ()) -> None:
        """`tokens`: uint32 [rows], queued or still lazy. `logprobs`: of the rows `asking`, in their order."""
        self.fed = tokens[:, None]
        self._words = tokens if logprobs is None else mx.concatenate([tokens, *logprobs.words()])
        self._asking = tuple(asking)
        self._num_tops = () if logprobs is None else logprobs.num_tops
        self._read: tuple[list[int], dict[int, TokenLogprob]] | None = None

    @classmethod
    def _known(cls, tokens: Sequence[int], logprobs: dict[int, TokenLogprob]) -> "Sampled":
        found = cls(token_array(tokens))
        found._read = list(tokens), logprobs
        return found

    @classmethod
    def joined(cls, parts: Sequence["Sampled"]) -> "Sampled":
        """The tokens of several groups as one, in order. Waits for their steps."""
        tokens: list[int] = []
        logprobs: dict[int, TokenLogprob] = {}
        for part in parts:
            more_tokens, more_logprobs = part.read()
            logprobs |= {len(tokens) + row: found for row, found in more_logprobs.items()}
            tokens += more_tokens
        return cls._known(tokens, logprobs)

    def narrowed(self, rows: Sequence[int]) -> "Sampled":
        """The tokens of these rows, in this order. Waits for the step."""
        tokens, logprobs = self.read()
        kept = {place: logprobs[row] for place, row in enumerate(rows) if row in logprobs}
        return self._known([tokens[row] for row in rows], kept)

    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate."""
        return [self.fed, self._words]

    def read(self) -> tuple[list[int], dict[int, TokenLogprob]]:
        """Waits for the step; returns the token of every row, and log probabilities by row."""
        if self._read is None:
            words, num_rows = read_back(self._words), self.fed.shape[0]
            tokens: list[int] = words[:num_rows].tolist()
            found: list[TokenLogprob] = []
            if self._asking:
                found = token_logprobs(words[num_rows:], [tokens[row] for row in self._asking], self._num_tops)
            self._read = tokens, dict(zip(self._asking, found, strict=True))
        return self._read


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
