"""Train a small chat model on one GPU in minutes: `python -m training.train --arch attn --minutes 7.5 --out OUT`.

`attn`: Qwen3, every layer attends. `hybrid`: Qwen3.5 dense, three gated delta layers before each one that attends.
Without a GPU it runs on the CPU, far too slowly for anything but a trial.
"""

import argparse
import json
import os
import time
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from training.evaluation import Scores, evaluate
from training.export import export
from training.learning.batches import Feeder
from training.learning.learner import Learner
from training.learning.row_workers import RowOrder, RowWorkers
from training.learning.schedule import EXPORT_EVERY, FIRST_EXPORT, ROW_LENGTHS, learning_rate
from training.model.shape import Shape
from training.text.corpus import load_material
from training.text.encoder import Encoder

_LOG_EVERY_S = 15.0
_LARGEST_ITEM = 65_536

SOURCES = (
    "Python 3.11 documentation (PSF licence), WordNet 3.0 (Princeton licence), Jargon File 4.4.7 (public domain),"
    " generated chats"
)


@dataclass(frozen=True, slots=True)
class Options:
    """`tokens`: of a step. `num_lengths`: row lengths in use. `eval_tokens`: of each. `workers` 0: by cores."""

    arch: str = "attn"
    minutes: float = 7.5
    out: str = "out"
    workers: int = 0
    hidden: int = 384
    layers: int = 8
    intermediate: int = 768
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    learning_rate: float = 2e-3
    tokens: int = 131_072
    compile: int = 1
    num_lengths: int = len(ROW_LENGTHS)
    eval_tokens: int = 65_536
    seed: int = 0


class Run:
    """One training run, from empty weights to an evaluated export."""

    def __init__(self, options: Options) -> None:
        self._started = time.monotonic()
        self._options = options
        self._lengths = ROW_LENGTHS[: options.num_lengths]
        item_tokens = min(_LARGEST_ITEM, options.tokens)
        num_workers = options.workers or max(1, (os.cpu_count() or 2) - 3)
        self._workers = RowWorkers(RowOrder(self._lengths, item_tokens, options.seed), num_workers)
        self._device = "cuda:0" if torch.cuda.is_available() else "cpu"
        self._material, self._encoder = load_material(), Encoder()
        self._shape = Shape(
            self._encoder.vocab_size,
            options.arch == "hybrid",
            options.hidden,
            options.layers,
            options.intermediate,
            options.heads,
            options.kv_heads,
            options.head_dim,
        )
        is_compiled = bool(options.compile) and self._device != "cpu"
        torch.manual_seed(options.seed)
        self._learner = Learner(self._shape, self._device, max(self._lengths), is_compiled=is_compiled, log=self._log)
        self._feeder = Feeder(self._workers, self._lengths, max(1, options.tokens // item_tokens), self._device)
        self._folder = Path(options.out) / f"{options.arch}-model"
        self._peak_rate = options.learning_rate
        self._history: list[tuple[int, int, float]] = []

    def run(self) -> Scores:
        """Train until the time is up, evaluate, export."""
        self._log(f"{self._device}, torch {torch.__version__}, {self._learner.num_parameters / 1e6:.2f} M parameters")
        next_log, next_export = self._elapsed_s() + _LOG_EVERY_S, FIRST_EXPORT
        while (progress := self._elapsed_s() / (self._options.minutes * 60)) < 1.0:
            self._workers.set_progress(min(progress, 0.999))
            batch = self._feeder.take(timeout_s=2)
            if batch is None:
                continue
            self._learner.step(batch, learning_rate(self._peak_rate, self._learner.num_steps, progress))
            if self._elapsed_s() > next_log:
                self._report()
                next_log = self._elapsed_s() + _LOG_EVERY_S
            if progress > next_export:
                self._export({"partial": True, **self._progress_note()})
                next_export += EXPORT_EVERY
        self._feeder.stop()
        self._workers.stop()
        return self._finish()

    def _report(self) -> None:
        loss = self._learner.last_loss()
        self._log(f"step {self._learner.num_steps} loss {loss:.4f}, {self._learner.num_tokens / 1e6:.0f} M tokens")
        best = min((earlier for _, _, earlier in self._history), default=loss)
        self._history.append((round(self._elapsed_s()), self._learner.num_steps, round(loss, 4)))
        if self._learner.keep_or_go_back(loss, best):
            self._peak_rate *= 0.4
            self._log(f"the loss is not finite: back to the last good weights, learning rate {self._peak_rate}")

    def _finish(self) -> Scores:
        network = self._learner.plain_network
        parameters = self._learner.parameters

        def most_likely(ids: torch.Tensor) -> torch.Tensor:
            return network.logits(ids.to(self._device), parameters).argmax(-1).view(ids.shape).cpu()

        scores = evaluate(most_likely, self._material, self._encoder, self._lengths, self._options.eval_tokens)
        note = {
            "arch": self._options.arch,
            "parameters": self._learner.num_parameters,
            **self._progress_note(),
            "seconds": round(self._elapsed_s()),
            "device": torch.cuda.get_device_name() if self._device != "cpu" else "cpu",
            "loss": self._history,
            "exact_answers": scores,
            "options": {field.name: getattr(self._options, field.name) for field in fields(self._options)},
            "text": SOURCES,
        }
        self._export(note)
        (Path(self._options.out) / f"{self._options.arch}.json").write_text(json.dumps(note, indent=1))
        return scores

    def _progress_note(self) -> dict[str, object]:
        return {"steps": self._learner.num_steps, "tokens": self._learner.num_tokens}

    def _export(self, note: dict[str, object]) -> None:
        export(self._folder, self._shape, self._learner.parameters, self._material, self._encoder, note)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def _log(self, *parts: object) -> None:
        print(f"[{self._elapsed_s():6.1f} s]", self._options.arch, *parts, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Options):
        choices = ("attn", "hybrid") if field.name == "arch" else None
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, type=type(field.default), default=field.default, choices=choices)
    scores = Run(Options(**vars(parser.parse_args()))).run()
    for length, by_task in scores.items():
        print(f"{length}:", ", ".join(f"{task} {share:.2f} ({count})" for task, (share, count) in by_task.items()))


if __name__ == "__main__":
    main()
