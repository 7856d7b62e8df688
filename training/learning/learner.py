"""Parameters, optimiser and steps. One thread."""

import math
from collections.abc import Callable

import torch
import torch._dynamo
from torch.nn import functional

from training.learning.batches import Batch
from training.model.gated_delta import faster_solver, solve_directly
from training.model.network import Network
from training.model.parameters import Parameters, new_parameters
from training.model.shape import Shape

LARGEST_GRADIENT = 1.0
_STEPS_TO_DOUBT_THE_COMPILER = 3
_MOST_VARIANTS = 64
"""Compiled forms of a part: gated and not, training and evaluation."""


class Learner:
    """`plain_network` computes the same without compilation, for evaluation and where compiling fails."""

    def __init__(
        self, shape: Shape, device: str, num_positions: int, *, is_compiled: bool, log: Callable[..., None]
    ) -> None:
        on_gpu = device != "cpu"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        self._log = log
        self.parameters: Parameters = new_parameters(shape, device)
        self.num_parameters = sum(parameter.numel() for parameter in self.parameters.values())
        self.num_steps = 0
        self.num_tokens = 0
        self._loss = torch.zeros(())
        self._kept: dict[str, torch.Tensor] = {}
        dtype = torch.bfloat16 if on_gpu else torch.float32
        measure = shape.is_hybrid and on_gpu
        solve = faster_solver(shape.num_heads, shape.head_dim, device, log) if measure else solve_directly
        self.plain_network = Network(shape, dtype, num_positions, device, solve=solve)
        self._network = self.plain_network
        if is_compiled:
            torch._dynamo.config.cache_size_limit = _MOST_VARIANTS
            self._network = Network(shape, dtype, num_positions, device, solve=solve, compile_part=_compiled)
        self._optimizer = new_optimizer(self.parameters, on_gpu)

    def step(self, batch: Batch, learning_rate: float) -> None:
        """One forward and backward pass over a batch, and one update."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        loss = self._forward(batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), LARGEST_GRADIENT)
        self._optimizer.step()
        self._loss = loss.detach()
        self.num_steps += 1
        self.num_tokens += batch.ids.numel()

    def last_loss(self) -> float:
        """Cross entropy a learned token; waits for the device."""
        return self._loss.item()

    def keep_or_go_back(self, loss: float, best: float) -> bool:
        """Keep these weights while the loss is sound; go back to the kept ones (True) when it is not finite."""
        if math.isfinite(loss):
            if not self._kept or loss < 1.5 * best:
                self._kept = {name: tensor.detach().clone() for name, tensor in self.parameters.items()}
            return False
        if not self._kept:
            return False
        self._optimizer.state.clear()
        for name, parameter in self.parameters.items():
            parameter.data.copy_(self._kept[name])
        return True

    def _forward(self, batch: Batch) -> torch.Tensor:
        try:
            return self._loss_of(self._network, batch)
        except Exception as error:
            if self._network is self.plain_network or self.num_steps >= _STEPS_TO_DOUBT_THE_COMPILER:
                raise
            self._log("compilation failed, going on without:", repr(error)[:300])
            self._network = self.plain_network
            return self._loss_of(self._network, batch)

    def _loss_of(self, network: Network, batch: Batch) -> torch.Tensor:
        logits = network.logits(batch.ids, self.parameters, batch.selected)
        return functional.cross_entropy(logits.float(), batch.targets)


def new_optimizer(parameters: Parameters, on_gpu: bool) -> torch.optim.Optimizer:
    """AdamW; only matrices decay, and not the embedding."""
    decayed = {name for name, tensor in parameters.items() if tensor.dim() == 2 and "embed" not in name}
    groups = [
        {"params": [parameters[name] for name in parameters if name in decayed], "weight_decay": 0.1},
        {"params": [parameters[name] for name in parameters if name not in decayed], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-10, fused=on_gpu)


def _compiled(part: Callable[..., object]) -> Callable[..., object]:
    return torch.compile(part, dynamic=False)


__all__ = ("LARGEST_GRADIENT", "Learner", "new_optimizer")
