"""Train a prediction head for an exported hybrid: `python -m training.train_head --model FOLDER --out OUT`.

The trunk stays as it is, and the head learns its predictions. OUT gets what the trunk's folder gains: a second shard
and config.json. One CUDA GPU; on the CPU it is a trial.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from training.learning.batches import Batch, Feeder
from training.learning.draft_lengths import draft_lengths
from training.learning.learner import LARGEST_GRADIENT, new_optimizer
from training.learning.row_workers import RowOrder, RowWorkers
from training.learning.schedule import ROW_LENGTHS, learning_rate
from training.model.gated_delta import faster_solver, solve_directly
from training.model.head import Head
from training.model.network import Network
from training.model.parameters import new_head_parameters
from training.model.shape import CONTEXT_LENGTH, Shape
from training.text.corpus import load_material
from training.text.encoder import Encoder

DEPTH = 3
"""Guesses a draft that are learned; what the head has learned of them it applies further on, too."""

_LOG_EVERY_S = 15.0
_PEAK_RATE = 2e-3


class HeadLearner:
    """A frozen trunk and a head that learns its predictions."""

    def __init__(self, shape: Shape, trunk: dict[str, Tensor], device: str) -> None:
        on_gpu = device != "cpu"
        dtype = torch.bfloat16 if on_gpu else torch.float32
        solve = faster_solver(shape.num_heads, shape.head_dim, device, print) if on_gpu else solve_directly
        self.network = Network(shape, dtype, CONTEXT_LENGTH, device, solve=solve)
        self.head = Head(shape, dtype, CONTEXT_LENGTH, device)
        self.parameters = new_head_parameters(shape, device)
        self.weights = trunk | self.parameters
        self._optimizer = new_optimizer(self.parameters, on_gpu)

    def step(self, batch: Batch, rate: float) -> Tensor:
        """One update; returns the loss of each depth, in nats a token."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        losses = self._losses(batch)
        self._optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()
        torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), LARGEST_GRADIENT)
        self._optimizer.step()
        return losses.detach()

    def _losses(self, batch: Batch) -> Tensor:
        """Cross entropy with the trunk's distribution, at each depth. A position counts as far as the trunk would have
        written its token itself: drafts are asked for behind the trunk's own tokens only."""
        with torch.no_grad():
            trunk = self.network.hidden_states(batch.ids, self.weights)
            wanted = self.head.logits(trunk.flatten(0, 1)[batch.selected], self.weights).float().softmax(-1)
            written = torch.ones(batch.ids.numel() + 1, device=trunk.device)
            written[batch.selected + 1] = wanted.gather(1, batch.targets[:, None])[:, 0]
            shares = written[batch.selected] / written[batch.selected].sum()
        losses = list[Tensor]()
        for hidden in self.head.hidden_states(batch.ids, trunk, self.weights, DEPTH):
            guesses = self.head.logits(hidden.flatten(0, 1)[batch.selected], self.weights)
            losses.append((functional.cross_entropy(guesses.float(), wanted, reduction="none") * shares).sum())
        return torch.stack(losses)


def train(
    learner: HeadLearner, lengths: tuple[int, ...], options: argparse.Namespace, device: str
) -> dict[str, object]:
    """Trains until the time is up; returns the number of steps and tokens."""
    workers = RowWorkers(RowOrder(lengths, options.tokens, seed=1), max(1, (os.cpu_count() or 2) - 3))
    feeder = Feeder(workers, lengths, 1, device)
    started, next_log, num_steps, num_tokens = time.monotonic(), _LOG_EVERY_S, 0, 0
    while (progress := (time.monotonic() - started) / (options.minutes * 60)) < 1.0:
        workers.set_progress(min(progress, 0.999))
        batch = feeder.take(timeout_s=2)
        if batch is None:
            continue
        losses = learner.step(batch, learning_rate(_PEAK_RATE, num_steps, progress))
        num_steps, num_tokens = num_steps + 1, num_tokens + batch.ids.numel()
        if time.monotonic() - started > next_log:
            print(f"step {num_steps}, {num_tokens / 1e6:.0f} M tokens, losses {losses.tolist()}", flush=True)
            next_log += _LOG_EVERY_S
    feeder.stop()
    workers.stop()
    return {"steps": num_steps, "tokens": num_tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3.4)
    parser.add_argument("--tokens", type=int, default=65_536, help="tokens in a step")
    parser.add_argument("--num-lengths", type=int, default=len(ROW_LENGTHS), help="row lengths in use")
    parser.add_argument("--chats", type=int, default=480, help="held-out chats whose drafts are measured")
    options = parser.parse_args()
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    encoder = Encoder()
    stored = load_file(options.model / "model.safetensors")
    trunk = {
        name.replace("model.language_model.", "model."): tensor.float().to(device) for name, tensor in stored.items()
    }
    learner = HeadLearner(Shape(encoder.vocab_size, is_hybrid=True), trunk, device)
    note = train(learner, ROW_LENGTHS[: options.num_lengths], options, device)

    head = {name: parameter.detach().bfloat16() for name, parameter in learner.parameters.items()}
    options.out.mkdir(parents=True, exist_ok=True)
    shard = {name: tensor.cpu() for name, tensor in head.items()}
    save_file(shard, options.out / "model-mtp.safetensors", metadata={"format": "pt"})
    config = json.loads((options.model / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["mtp_num_hidden_layers"] = 1
    (options.out / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")

    weights = trunk | {name: tensor.float() for name, tensor in head.items()}
    note["drafts"] = draft_lengths(
        learner.network, learner.head, weights, load_material(), encoder, options.chats, DEPTH
    )
    (options.out / "training_head.json").write_text(json.dumps(note, indent=1), encoding="utf-8")
    print(json.dumps(note, indent=1))


if __name__ == "__main__":
    main()
