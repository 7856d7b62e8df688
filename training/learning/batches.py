"""Batches for training: a thread that takes rows from the workers and keeps a few batches ready on the device."""

import queue
import random
import threading
import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from training.learning.row_workers import LEARNED_BIT, RowWorkers
from training.learning.schedule import row_shares

_MOST_WAITING = 80
_MOST_OF_ONE_LENGTH = 40


class Batch(NamedTuple):
    """ids: [rows, length]. `selected`: flat positions whose next token is learned; `targets`: those tokens."""

    ids: Tensor
    selected: Tensor
    targets: Tensor


class Feeder:
    """`take` gives the next batch; lengths are drawn by the schedule from what the workers have ready."""

    def __init__(self, workers: RowWorkers, lengths: tuple[int, ...], items_per_batch: int, device: str) -> None:
        self._workers = workers
        self._lengths = lengths
        self._items_per_batch = items_per_batch
        self._device = device
        self._waiting: dict[int, list[np.ndarray]] = {length: [] for length in lengths}
        self._ready: queue.Queue[Batch] = queue.Queue(3)
        self._random = random.Random(7)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> Batch | None:
        """None when the workers have not kept up."""
        try:
            return self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._collect()
            length = self._choose()
            if length is None:
                time.sleep(0.01)
                continue
            waiting = self._waiting[length]
            rows = np.concatenate(waiting[: self._items_per_batch])
            self._waiting[length] = waiting[self._items_per_batch :][-_MOST_OF_ONE_LENGTH:]
            batch = self._batch(rows)
            while batch is not None and not self._stopping.is_set():
                try:
                    self._ready.put(batch, timeout=1)
                except queue.Full:
                    continue
                break

    def _collect(self) -> None:
        try:
            while sum(map(len, self._waiting.values())) < _MOST_WAITING:
                length, rows = self._workers.items.get_nowait()
                self._waiting[length].append(rows)
        except queue.Empty:
            return

    def _choose(self) -> int | None:
        full = [length for length in self._lengths if len(self._waiting[length]) >= self._items_per_batch]
        if not full:
            return None
        shares = row_shares(self._workers.progress(), len(self._lengths))
        share = dict(zip(self._lengths, shares, strict=True))
        candidates = [length for length in full if share[length] > 0] or full
        return self._random.choices(candidates, [max(share[length], 1e-3) for length in candidates])[0]

    def _batch(self, rows: np.ndarray) -> Batch | None:
        """None when nothing in the rows is learned."""
        is_learned = rows >> LEARNED_BIT
        ids = (rows & ((1 << LEARNED_BIT) - 1)).astype(np.int64)
        targets, selects = np.zeros_like(ids), np.zeros_like(is_learned)
        targets[:, :-1], selects[:, :-1] = ids[:, 1:], is_learned[:, 1:]
        selected = np.flatnonzero(selects.ravel())
        if not selected.size:
            return None
        parts = [torch.from_numpy(part) for part in (ids, selected, targets.ravel()[selected])]
        if self._device != "cpu":
            parts = [part.pin_memory().to(self._device, non_blocking=True) for part in parts]
        return Batch(*parts)


__all__ = ("Batch", "Feeder")
