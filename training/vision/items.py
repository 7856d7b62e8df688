"""The output of the worker processes: pictures, and rows of conversations about them.

Pictures lie in memory that the processes share; rows travel through a queue. A row is uint16: the token id, and in the
top bit whether the token is learned.
"""

import mmap
import multiprocessing
import os
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from training.learning.row_workers import LEARNED_BIT
from training.tasks import Draw, Material
from training.tasks.conversation import Answer
from training.text.corpus import load_material
from training.vision.conversation import write_seen_conversation
from training.vision.render import SIDE, font_files, render
from training.vision.scene import Scene, draw_scene
from training.vision.tokenizer import SeeingEncoder

PICTURES = 96
"""In an item."""

ITEM_TOKENS = 32_768
_NUM_SLOTS = 40
_PICTURE_BYTES = SIDE * SIDE * 3

Render = Callable[[Scene, Sequence[str]], np.ndarray]


@cache
def material() -> Material:
    """Loaded once; processes that are forked afterwards share it."""
    return load_material()


class Item(NamedTuple):
    """rows: [rows, length]. shown: [places, 2], the flat position of a picture's first token and the picture."""

    rows: np.ndarray
    shown: np.ndarray
    answers: list[list[Answer]]


@dataclass(frozen=True, slots=True)
class ItemOrder:
    """`lengths`: of rows, drawn with these `shares`. `seed`: of the run; each worker draws from its own."""

    lengths: tuple[int, ...]
    shares: tuple[float, ...]
    fonts: Path
    tokenizer: Path
    seed: int
    item_tokens: int = ITEM_TOKENS
    pictures: int = PICTURES


class Writer:
    """Items without end, from one seed."""

    def __init__(self, order: ItemOrder, seed: int, picture: Render = render) -> None:
        self._order = order
        self._draw = Draw(seed, material())
        self._encoder = SeeingEncoder(order.tokenizer)
        self._fonts = font_files(order.fonts)
        self._picture = picture

    def write(self, pictures: np.ndarray) -> Item:
        """Fill `pictures` [pictures, SIDE, SIDE, 3]; return rows about them."""
        draw, encoder = self._draw, self._encoder
        scenes = [draw_scene(draw) for _ in range(len(pictures))]
        for place, scene in enumerate(scenes):
            pictures[place] = self._picture(scene, self._fonts)
        length = draw.random.choices(self._order.lengths, self._order.shares)[0]
        rows = np.full((max(1, self._order.item_tokens // length), length), encoder.text_end, np.uint16)
        shown, answers = [], []
        for number, row in enumerate(rows):
            written = write_seen_conversation(draw, scenes, length, encoder, encoder.image_id)
            marks = np.array(written.is_learned, np.uint16) << LEARNED_BIT
            row[: len(written.ids)] = np.array(written.ids, np.uint16) | marks
            shown += [(number * length + place.start, place.scene) for place in written.shown]
            answers.append(written.answers)
        return Item(rows, np.array(shown, np.int64).reshape(-1, 2), answers)


class ItemWorkers:
    """Start before anything touches the GPU: the processes are forked."""

    def __init__(self, order: ItemOrder, num_workers: int) -> None:
        context: Any = multiprocessing.get_context("fork")
        self._slots = mmap.mmap(-1, _NUM_SLOTS * order.pictures * _PICTURE_BYTES)
        self.pictures = np.frombuffer(self._slots, np.uint8).reshape(_NUM_SLOTS, order.pictures, SIDE, SIDE, 3)
        self._free: Any = context.Queue()
        self._ready: Any = context.Queue()
        self._is_stopping: Synchronized = context.Value("b", 0)
        self._processes = [
            context.Process(target=self._work, args=(order, order.seed * 1000 + index), daemon=True)
            for index in range(num_workers)
        ]
        for process in self._processes:
            process.start()

    def begin(self) -> None:
        """Let them write. This starts a thread, so fork what else is to be forked before."""
        for slot in range(_NUM_SLOTS):
            self._free.put(slot)

    def take(self, timeout_s: float) -> tuple[int, Item] | None:
        """A slot of `pictures` with its item; give the slot back once its pictures are copied."""
        try:
            return self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def give_back(self, slot: int) -> None:
        self._free.put(slot)

    def stop(self) -> None:
        self._is_stopping.value = 1
        for of in (self._free, self._ready):
            of.cancel_join_thread()
        for process in self._processes:
            process.terminate()
            process.join()

    def _work(self, order: ItemOrder, seed: int) -> None:
        os.nice(5)
        writer = Writer(order, seed)
        while not self._is_stopping.value:
            try:
                slot = self._free.get(timeout=1)
            except queue.Empty:
                continue
            self._ready.put((slot, writer.write(self.pictures[slot])))


__all__ = ("ITEM_TOKENS", "PICTURES", "Item", "ItemOrder", "ItemWorkers", "Render", "Writer", "material")
