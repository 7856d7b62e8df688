"""One sequence's sampling: its settings, its history, and the seed of the noise that is its own."""

import mlx.core as mx
import numpy as np

from adapters.mlx.arrays import from_numpy
from application.ports.compute import DecodeStart
from domain.sampling import SamplingParams


class SamplerRow:
    """`num_sampled` counts tokens chosen so far, by whichever state; those of the lane it is in when that lets it go.

    `counts`: float32 [vocab], how often each token was generated; lazy, and only kept for rows with penalties.
    `ends`: bool [vocab], True at the tokens that end an answer; None for a row that may end at once.
    `constraint`: what allows its tokens, if it has a grammar.
    """

    __slots__ = ("bias", "constraint", "counts", "ends", "in_prompt", "min_tokens", "num_sampled", "params", "seed")

    def __init__(self, start: DecodeStart, vocab_size: int) -> None:
        self.params: SamplingParams = start.sampling
        self.seed = start.seed
        self.min_tokens = start.min_tokens
        self.num_sampled = len(start.output_ids)
        self.constraint = start.constraint
        self.params.check_vocabulary(vocab_size)
        self.bias: mx.array | None = None
        self.counts: mx.array | None = None
        self.in_prompt: mx.array | None = None
        self.ends = _marked(start.eos_token_ids, vocab_size) if self.min_tokens else None
        if self.params.logit_bias:
            bias = np.zeros(vocab_size, np.float32)
            for token_id, value in self.params.logit_bias:
                bias[token_id] = value
            self.bias = from_numpy(bias)
        if self.params.has_penalties:
            self.in_prompt = _marked(frozenset(start.prompt_ids), vocab_size)
            self.counts = _counted(start.output_ids, vocab_size)

    @property
    def is_untouched(self) -> bool:
        """Whether its tokens are chosen from the logits as they are, from here on."""
        is_long_enough = self.num_sampled >= self.min_tokens
        return self.bias is None and self.counts is None and self.constraint is None and is_long_enough


def _marked(token_ids: frozenset[int], vocab_size: int) -> mx.array:
    marks = np.zeros(vocab_size, np.bool_)
    marks[np.asarray([id for id in token_ids if 0 <= id < vocab_size], dtype=np.int64)] = True
    return from_numpy(marks)


def _counted(token_ids: tuple[int, ...], vocab_size: int) -> mx.array:
    known = np.asarray([id for id in token_ids if 0 <= id < vocab_size], dtype=np.int64)
    return from_numpy(np.bincount(known, minlength=vocab_size).astype(np.float32))


__all__ = ("SamplerRow",)
