"""Train the vision model on one GPU: `python -m training.train_vision --fonts FONTS --other-fonts OTHERS --out OUT`.

Idefics3: a small SigLIP tower whose patches a small Llama reads as 64 tokens a picture, trained together from scratch
on generated pictures and chats. FONTS: TrueType or OpenType files to learn from; OTHERS: to evaluate with. Needs
Pillow beside PyTorch. Without a GPU it runs on the CPU, for a trial.
"""

import argparse
import math
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from training.learning.row_workers import LEARNED_BIT
from training.learning.schedule import EXPORT_EVERY, FIRST_EXPORT, learning_rate
from training.vision.evaluation import HeldOut, Scores, evaluate, held_out
from training.vision.export import export_weights
from training.vision.items import ITEM_TOKENS, PICTURES, Item, ItemOrder, ItemWorkers, material
from training.vision.muon import Muon
from training.vision.network import SeeingNetwork
from training.vision.other_pictures import render_otherwise
from training.vision.render import SIDE, render
from training.vision.shape import CONTEXT_LENGTH, SeeingShape, new_parameters
from training.vision.tokenizer import SeeingEncoder, write_tokenizer

_LENGTHS = (512, CONTEXT_LENGTH)
_SHARES = (0.9, 0.1)
_LOG_EVERY_S = 15.0
_LARGEST_GRADIENT = 1.0
_ID_BITS = (1 << LEARNED_BIT) - 1


@dataclass(frozen=True, slots=True)
class Options:
    """`items`: of a step. `kept`: items on the device, from which steps draw. `eval_items`: of each generator."""

    minutes: float = 8.0
    fonts: str = ""
    other_fonts: str = ""
    tokenizer: str = "adapters/huggingface/embedded/cairn-demo"
    out: str = "out"
    workers: int = 0
    items: int = 3
    kept: int = 240
    item_tokens: int = ITEM_TOKENS
    pictures: int = PICTURES
    rate: float = 1.5e-3
    matrix_rate: float = 0.02
    is_muon: int = 1
    is_compiled: int = 1
    eval_items: int = 12
    seed: int = 0


class Batch:
    """An item on the device."""

    def __init__(self, item: Item, pictures: np.ndarray, device: str) -> None:
        is_learned = item.rows >> LEARNED_BIT
        ids = (item.rows & _ID_BITS).astype(np.int64)
        targets, selects = np.zeros_like(ids), np.zeros_like(is_learned)
        targets[:, :-1], selects[:, :-1] = ids[:, 1:], is_learned[:, 1:]
        selected = np.flatnonzero(selects.ravel())
        parts = [torch.from_numpy(part) for part in (ids, selected, targets.ravel()[selected], item.shown, pictures)]
        if device == "cpu":
            parts[-1] = parts[-1].clone()
        else:
            parts = [part.pin_memory().to(device, non_blocking=True) for part in parts]
        self.ids, self.selected, self.targets, self.shown, self.pictures = parts


class Shelf:
    """The latest items on the device, from which steps draw: each is used until others have taken its place.

    A thread fills it, so that training never waits for the workers once it has begun."""

    def __init__(self, workers: ItemWorkers, most: int, device: str, seed: int) -> None:
        self._workers = workers
        self._most = most
        self._device = device
        self._random = random.Random(seed)
        self._kept: list[Batch] = []
        self.num_taken = 0
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._fill, daemon=True)
        self._thread.start()

    def draw(self, count: int) -> list[Batch]:
        """Different items whose rows have one length."""
        while True:
            by_length: dict[int, list[Batch]] = {}
            for batch in list(self._kept):
                by_length.setdefault(batch.ids.shape[1], []).append(batch)
            enough = [batches for batches in by_length.values() if len(batches) >= count]
            if enough:
                return self._random.sample(self._random.choices(enough, list(map(len, enough)))[0], count)
            time.sleep(0.1)

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join()

    def _fill(self) -> None:
        while not self._is_stopping.is_set():
            taken = self._workers.take(timeout_s=1)
            if taken is None:
                continue
            slot, item = taken
            batch = Batch(item, self._workers.pictures[slot], self._device)
            self._workers.give_back(slot)
            if len(self._kept) < self._most:
                self._kept.append(batch)
            else:
                self._kept[self.num_taken % self._most] = batch
            self.num_taken += 1


class Learner:
    """Parameters, optimisers and steps."""

    def __init__(self, shape: SeeingShape, options: Options, device: str, log: Callable[..., None]) -> None:
        self._options = options
        self._device = device
        self._log = log
        on_gpu = device != "cpu"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        self.parameters = new_parameters(shape, device)
        self.num_parameters = sum(parameter.numel() for parameter in self.parameters.values())
        self.num_steps = 0
        self.num_tokens = 0
        dtype = torch.bfloat16 if on_gpu else torch.float32
        self.plain_network = SeeingNetwork(shape, dtype, device)
        self._network = self.plain_network
        if options.is_compiled and on_gpu:
            self._network = SeeingNetwork(shape, dtype, device, partial(torch.compile, dynamic=False))
        self._peak = 1.0
        self._kept: dict[str, Tensor] = {}
        self._make_optimizers(on_gpu)

    def _make_optimizers(self, on_gpu: bool) -> None:
        """Muon for the matrices of layers, AdamW for the rest; or AdamW for all."""
        options, named = self._options, self.parameters
        matrices = [name for name, tensor in named.items() if tensor.dim() == 2 and "embed" not in name]
        others = [tensor for name, tensor in named.items() if name not in matrices]
        groups = [{"params": others, "weight_decay": 0.0}]
        self._muon = Muon([named[name] for name in matrices], 0.1) if options.is_muon else None
        if self._muon is None:
            groups.append({"params": [named[name] for name in matrices], "weight_decay": 0.1})
        self._adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-10, fused=on_gpu)

    def step(self, batches: list[Batch], progress: float) -> Tensor:
        """One forward and backward pass over the items, and one update; the loss, still on the device."""
        loss = self._forward(batches)
        self._adam.zero_grad(set_to_none=True)
        for parameter in self.parameters.values():
            parameter.grad = None
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), _LARGEST_GRADIENT)
        share = learning_rate(self._peak, self.num_steps, progress)
        for group in self._adam.param_groups:
            group["lr"] = share * self._options.rate
        self._adam.step()
        if self._muon is not None:
            self._muon.step(share * self._options.matrix_rate)
        self.num_steps += 1
        self.num_tokens += sum(batch.ids.numel() for batch in batches)
        return loss.detach()

    def keep_or_go_back(self, loss: float, best: float) -> bool:
        """Keep these weights while the loss is sound; else go back to the kept ones (True), with smaller steps."""
        if math.isfinite(loss) and (not self._kept or loss < 2 * best + 0.2):
            self._kept = {name: tensor.detach().clone() for name, tensor in self.parameters.items()}
            return False
        if not self._kept:
            return False
        for name, parameter in self.parameters.items():
            parameter.data.copy_(self._kept[name])
        self._peak *= 0.4
        self._make_optimizers(self._device != "cpu")
        return True

    def _forward(self, batches: list[Batch]) -> Tensor:
        try:
            return self._loss(self._network, batches)
        except Exception as error:
            if self._network is self.plain_network or self.num_steps >= 3:
                raise
            self._log("compilation failed, going on without:", repr(error)[:300])
            self._network = self.plain_network
            return self._loss(self._network, batches)

    def _loss(self, network: SeeingNetwork, batches: list[Batch]) -> Tensor:
        size, per_item = batches[0].ids.numel(), len(batches[0].pictures)
        shown = torch.cat([batch.shown + self._shift(at * size, at * per_item) for at, batch in enumerate(batches)])
        selected = torch.cat([batch.selected + at * size for at, batch in enumerate(batches)])
        targets = torch.cat([batch.targets for batch in batches])
        pictures = torch.cat([batch.pictures for batch in batches])
        features = network.features(as_input(pictures, is_varied=True), self.parameters)
        logits = network.logits(torch.cat([batch.ids for batch in batches]), shown, features, self.parameters, selected)
        return functional.cross_entropy(logits.float(), targets)

    def _shift(self, *by: int) -> Tensor:
        return torch.tensor(by).to(self._device, non_blocking=True)


class Run:
    """One training run, from empty weights to an evaluated export."""

    def __init__(self, options: Options) -> None:
        self._started = time.monotonic()
        self._options = options
        self._folder = Path(options.out) / "vision-model"
        write_tokenizer(Path(options.tokenizer), self._folder, SIDE)
        order = ItemOrder(
            _LENGTHS, _SHARES, Path(options.fonts), self._folder, options.seed, options.item_tokens, options.pictures
        )
        cores = os.cpu_count() or 2
        material()  # before the processes are forked
        self._workers = ItemWorkers(order, options.workers or max(1, cores - 2))
        self._pool: Any = multiprocessing.get_context("fork").Pool(min(4, cores))
        self._workers.begin()
        numbers = range(options.eval_items)
        self._held_out = {
            "same generator": self._pool.map_async(partial(_held_out, order), numbers),
            "other pictures": self._pool.map_async(partial(_held_out_otherwise, order, options.other_fonts), numbers),
        }
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(options.seed)
        self._encoder = SeeingEncoder(self._folder)
        self._shape = SeeingShape(-(-self._encoder.vocab_size // 8) * 8)
        self._learner = Learner(self._shape, options, self._device, self._log)
        self._shelf = Shelf(self._workers, options.kept, self._device, options.seed)
        self._history: list[tuple[int, int, float]] = []

    def run(self) -> dict[str, Scores]:
        """Train until the time is up, evaluate, export."""
        self._log(f"{self._device}, torch {torch.__version__}, {self._learner.num_parameters / 1e6:.2f} M parameters")
        self._shelf.draw(self._options.items)
        begun, next_log, next_export = self._elapsed_s(), 0.0, FIRST_EXPORT
        while (progress := (self._elapsed_s() - begun) / (self._options.minutes * 60 - begun)) < 1.0:
            loss = self._learner.step(self._shelf.draw(self._options.items), progress)
            if self._elapsed_s() > next_log:
                self._report(loss.item())
                next_log = self._elapsed_s() + _LOG_EVERY_S
            if progress > next_export:
                self._log("so far:", self._scores("same generator", 2))
                self._export({"partial": True, "steps": self._learner.num_steps})
                next_export += EXPORT_EVERY
        self._shelf.stop()
        self._workers.stop()
        return self._finish()

    def _report(self, loss: float) -> None:
        learner, taken = self._learner, self._shelf.num_taken
        self._log(f"step {learner.num_steps} loss {loss:.4f}, {learner.num_tokens / 1e6:.0f} M tokens, {taken} items")
        best = min((earlier for _, _, earlier in self._history), default=loss)
        self._history.append((round(self._elapsed_s()), learner.num_steps, round(loss, 4)))
        if learner.keep_or_go_back(loss, best):
            self._log("back to the last good weights, with smaller steps")

    def _scores(self, name: str, most_items: int) -> Scores:
        """The scores of the present parameters on held-out items."""
        network, parameters = self._learner.plain_network, self._learner.parameters

        def most_likely(ids: Tensor, shown: Tensor, pictures: np.ndarray) -> Tensor:
            seen = as_input(torch.from_numpy(pictures).to(self._device), is_varied=False)
            features = network.features(seen, parameters)
            logits = network.logits(ids.to(self._device), shown.to(self._device), features, parameters)
            return logits.argmax(-1).view(ids.shape).cpu()

        return evaluate(most_likely, self._held_out[name].get(timeout=120)[:most_items])

    def _finish(self) -> dict[str, Scores]:
        learner = self._learner
        scores = {name: self._scores(name, self._options.eval_items) for name in self._held_out}
        self._pool.terminate()
        note = {
            "parameters": learner.num_parameters,
            "steps": learner.num_steps,
            "tokens": learner.num_tokens,
            "pictures": self._shelf.num_taken * self._options.pictures,
            "seconds": round(self._elapsed_s()),
            "device": torch.cuda.get_device_name() if self._device != "cpu" else "cpu",
            "loss": self._history,
            "exact_answers": scores,
            "options": {field.name: getattr(self._options, field.name) for field in fields(self._options)},
        }
        self._export(note)
        return scores

    def _export(self, note: Mapping[str, object]) -> None:
        export_weights(self._folder, self._shape, self._learner.parameters, self._encoder, note)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def _log(self, *parts: object) -> None:
        print(f"[{self._elapsed_s():6.1f} s]", *parts, flush=True)


def as_input(pictures: Tensor, *, is_varied: bool) -> Tensor:
    """uint8 [pictures, SIDE, SIDE, 3] to the tower's input; for learning a little moved, scaled and recoloured."""
    x = pictures.permute(0, 3, 1, 2).float() / 127.5 - 1
    if not is_varied:
        return x
    count, device = len(x), x.device
    scale = 1 + (torch.rand(count, 2, device=device) - 0.5) * 0.08
    shift = (torch.rand(count, 2, device=device) - 0.5) * 0.08
    grid = torch.zeros(count, 2, 3, device=device)
    grid[:, 0, 0], grid[:, 1, 1], grid[:, :, 2] = scale[:, 0], scale[:, 1], shift
    moved = functional.grid_sample(
        x, functional.affine_grid(grid, list(x.shape), align_corners=False), padding_mode="border", align_corners=False
    )
    x = torch.where(torch.rand(count, 1, 1, 1, device=device) < 0.5, moved, x)
    gain = 1 + (torch.rand(count, 3, 1, 1, device=device) - 0.5) * 0.1
    offset = (torch.rand(count, 1, 1, 1, device=device) - 0.5) * 0.1
    return (x * gain + offset).clamp(-1, 1)


def _held_out(order: ItemOrder, number: int) -> HeldOut:
    return held_out(order, number, render)


def _held_out_otherwise(order: ItemOrder, fonts: str, number: int) -> HeldOut:
    return held_out(replace(order, fonts=Path(fonts)), 1000 + number, render_otherwise)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Options):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
    scores = Run(Options(**vars(parser.parse_args()))).run()
    for generator, by_task in scores.items():
        print(f"{generator}:", ", ".join(f"{task} {share:.2f} ({count})" for task, (share, count) in by_task.items()))


if __name__ == "__main__":
    main()
