"""Log probabilities of tokens and of the likeliest alternatives, in the model's own distribution.

They come to the host as words of 32 bits, so that one array can hold them beside token ids:

    chosen [n]  |  ids of the likeliest [n, k]  |  their values [n, k]        k: what the most curious row wants
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from domain.stream import TokenLogprob


@dataclass(frozen=True, slots=True)
class LogprobArrays:
    """Log probabilities of n tokens, lazy: `chosen` [n], `top_ids` and `top_values` [n, k] unordered, None for k = 0.

    `num_tops`: how many alternatives each wants.
    """

    num_tops: tuple[int, ...]
    chosen: mx.array
    top_ids: mx.array | None = None
    top_values: mx.array | None = None

    @classmethod
    def of(cls, logits: mx.array, tokens: mx.array, num_tops: tuple[int, ...]) -> "LogprobArrays":
        """From the logits [n, vocab] of any dtype that chose `tokens` [n], or should have."""
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


def told(words: NDArray[np.uint32], token_ids: Sequence[int], num_tops: Sequence[int]) -> list[TokenLogprob]:
    """What `LogprobArrays.words` say of these tokens, one after the other. Alternatives that cannot come (-inf) are
    not told."""
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


__all__ = ("LogprobArrays", "told")
