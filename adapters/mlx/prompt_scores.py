"""How likely a model found the tokens of its prompt, read off the logits of the chunks it computes anyway.

A chunk's logits come in the model's dtype, thousands of rows as wide as the vocabulary. They are turned into float32
log probabilities a few rows at a time, each slice evaluated before the next one begins.
"""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from adapters.mlx.arrays import evaluate, read_back, token_array
from adapters.mlx.logprobs import LogprobArrays, told
from application.ports.compute import PromptScores
from domain.stream import TokenLogprob

SLICE_BYTES = 16 << 20
"""Of one float32 copy of a slice; finding the likeliest takes four such copies for a moment."""


def score_chunk(
    logits: mx.array, token_ids: Sequence[int], before: mx.array | None, num_tops: int
) -> tuple[PromptScores, mx.array]:
    """Scores of a chunk from its logits [tokens, vocab], and a copy of its last row: what the next chunk's first token
    is scored by. `before`: that row of the chunk before, None if nobody kept it."""
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
    """Each token by its own row."""
    wanted, tokens = (num_tops,) * len(token_ids), token_array(token_ids)
    found = LogprobArrays.of(logits, tokens, wanted)
    ranks = 1 + mx.sum(logits > mx.take_along_axis(logits, tokens[:, None], axis=-1), axis=-1)
    words = read_back(mx.concatenate([ranks.astype(mx.uint32), *found.words()]))
    scores = told(words[len(token_ids) :], token_ids, wanted)
    return [replace(score, rank=rank) for score, rank in zip(scores, words[: len(token_ids)].tolist(), strict=True)]


__all__ = ("score_chunk",)
