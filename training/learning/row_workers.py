"""Processes that write conversations without end, as arrays of rows of one length.

A row is uint16: the token id, and in the top bit whether the token is learned. Rows are filled up with text ends.
"""

import multiprocessing
import os
import queue
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import numpy as np

from training.learning.schedule import row_shares
from training.tasks import Draw, plain_text, write_conversation
from training.text.corpus import load_material
from training.text.encoder import Encoder

LEARNED_BIT = 15
_PLAIN_SHARE = 0.12
_QUEUE_ITEMS = 64


@dataclass(frozen=True, slots=True)
class RowOrder:
    """`item_tokens`: tokens in one array. `seed`: of the run; each worker draws from its own."""

    lengths: tuple[int, ...]
    item_tokens: int
    seed: int


class RowWorkers:
    """Start before anything touches the GPU: the processes are forked."""

    def __init__(self, order: RowOrder, num_workers: int) -> None:
        context: Any = multiprocessing.get_context("fork")
        self.items: Any = context.Queue(_QUEUE_ITEMS)
        self._progress: Synchronized = context.Value("d", 0.0)
        self._processes = [
            context.Process(target=_work, args=(order, index, self.items, self._progress), daemon=True)
            for index in range(num_workers)
        ]
        for process in self._processes:
            process.start()

    def set_progress(self, progress: float) -> None:
        """Tell the workers how far the run is; at 1 they stop."""
        self._progress.value = progress

    def progress(self) -> float:
        return self._progress.value

    def stop(self) -> None:
        """End the processes without waiting for rows they are still writing."""
        self._progress.value = 1.0
        self.items.cancel_join_thread()
        for process in self._processes:
            process.terminate()
            process.join()


def _work(order: RowOrder, index: int, items: Any, progress: Synchronized) -> None:
    os.nice(5)
    draw = Draw(order.seed * 1000 + index, load_material())
    encoder = Encoder()
    while progress.value < 1.0:
        shares = row_shares(min(1.0, progress.value + 0.02), len(order.lengths))
        length = draw.random.choices(order.lengths, shares)[0]
        rows = np.full((max(1, order.item_tokens // length), length), encoder.text_end, np.uint16)
        for row in rows:
            _fill(row, draw, encoder)
        _offer(items, (length, rows), progress)


def _fill(row: np.ndarray, draw: Draw, encoder: Encoder) -> None:
    while True:
        if draw.random.random() < _PLAIN_SHARE:
            written = plain_text(draw, len(row), encoder, encoder.text_end)
        else:
            written = write_conversation(draw, len(row), encoder)
        if 0 < len(written.ids) <= len(row):
            break
    marks = np.array(written.is_learned, np.uint16) << LEARNED_BIT
    row[: len(written.ids)] = np.array(written.ids, np.uint16) | marks


def _offer(items: Any, item: tuple[int, np.ndarray], progress: Synchronized) -> None:
    while progress.value < 1.0:
        try:
            items.put(item, timeout=1)
        except queue.Full:
            continue
        return


__all__ = ("LEARNED_BIT", "RowOrder", "RowWorkers")
