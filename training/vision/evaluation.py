"""Exact answers about held-out pictures, of the same generator and of another one.

An answer counts when every one of its tokens is the most likely one, given the right beginning.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from training.learning.row_workers import LEARNED_BIT
from training.vision.items import Item, ItemOrder, Render, Writer
from training.vision.render import SIDE

_SEED = 424_242
"""Not a seed of any worker."""

Scores = dict[str, tuple[float, int]]
"""By task: the share of exact answers, and how many there were."""

MostLikely = Callable[[Tensor, Tensor, np.ndarray], Tensor]
"""Ids [rows, length], shown as in Item, and pictures; to the most likely next id at each place, on the CPU."""


class HeldOut(NamedTuple):
    pictures: np.ndarray
    item: Item


def held_out(order: ItemOrder, number: int, picture: Render) -> HeldOut:
    """The item `number`."""
    pictures = np.empty((order.pictures, SIDE, SIDE, 3), np.uint8)
    return HeldOut(pictures, Writer(order, _SEED + number, picture).write(pictures))


@torch.no_grad()
def evaluate(most_likely: MostLikely, items: list[HeldOut]) -> Scores:
    counts: dict[str, list[int]] = {}
    for pictures, item in items:
        ids = (item.rows & ((1 << LEARNED_BIT) - 1)).astype(np.int64)
        predicted = most_likely(torch.from_numpy(ids), torch.from_numpy(item.shown), pictures).numpy()
        for row, answers in enumerate(item.answers):
            for task, start, end in answers:
                count = counts.setdefault(task, [0, 0])
                count[0] += int((predicted[row, start - 1 : end - 1] == ids[row, start:end]).all())
                count[1] += 1
    return {task: (round(right / all_, 3), all_) for task, (right, all_) in sorted(counts.items())}


__all__ = ("HeldOut", "MostLikely", "Scores", "evaluate", "held_out")
