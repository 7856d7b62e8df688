"""Exact answers on held-out chats: an answer counts when every one of its tokens is the most likely one.

Given the right beginning, that is what greedy decoding would write.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from training.tasks import Conversation, Draw, Material, write_conversation
from training.text.encoder import Encoder

_SEED = 424_242
"""Not a seed of any worker."""

_TOKENS_A_PASS = 32_768

Scores = dict[int, dict[str, tuple[float, int]]]
"""By row length and task: the share of exact answers, and how many there were."""


@torch.no_grad()
def evaluate(
    most_likely: Callable[[Tensor], Tensor],
    material: Material,
    encoder: Encoder,
    lengths: tuple[int, ...],
    tokens_a_length: int,
) -> Scores:
    """`most_likely`: ids [batch, tokens] to the most likely next id at each position, on the CPU."""
    draw = Draw(_SEED, material)
    scores: Scores = {}
    for length in lengths:
        chats = [write_conversation(draw, length, encoder) for _ in range(max(2, tokens_a_length // length))]
        padded = [chat.ids + [encoder.text_end] * (length - len(chat.ids)) for chat in chats]
        ids = torch.tensor(padded)
        size = max(1, _TOKENS_A_PASS // length)
        predicted = torch.cat([most_likely(ids[at : at + size]) for at in range(0, len(ids), size)])
        scores[length] = _exact_shares(chats, ids.numpy(), predicted.numpy())
    return scores


def _exact_shares(chats: list[Conversation], ids: np.ndarray, predicted: np.ndarray) -> dict[str, tuple[float, int]]:
    counts: dict[str, list[int]] = {}
    for row, chat in enumerate(chats):
        for task, start, end in chat.answers:
            count = counts.setdefault(task, [0, 0])
            count[0] += int((predicted[row, start - 1 : end - 1] == ids[row, start:end]).all())
            count[1] += 1
    return {task: (round(right / all_, 3), all_) for task, (right, all_) in sorted(counts.items())}


__all__ = ("Scores", "evaluate")
