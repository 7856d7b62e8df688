"""Muon: momentum whose matrix is made orthogonal before each step; for the weight matrices of layers.

Matrices of one shape are updated together. Keller Jordan's method, 2024; the coefficients of the iteration are his.
"""

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MOMENTUM = 0.95


class Muon:
    """`step` reads the gradients of float32 matrices."""

    def __init__(self, matrices: list[Tensor], decay: float) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for matrix in matrices:
            by_shape.setdefault(matrix.shape, []).append(matrix)
        self._groups = list(by_shape.values())
        self._momenta = [torch.zeros(len(group), *group[0].shape, device=group[0].device) for group in self._groups]
        self._decay = decay

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        for group, momentum in zip(self._groups, self._momenta, strict=True):
            gradient = torch.stack([matrix.grad for matrix in group])
            momentum.lerp_(gradient, 1 - _MOMENTUM)
            rows, columns = group[0].shape
            update = orthogonal(gradient.lerp(momentum, _MOMENTUM)) * max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(group, 1 - learning_rate * self._decay)
            torch._foreach_add_(group, list(update.to(group[0].dtype).unbind()), alpha=-learning_rate)


def orthogonal(matrices: Tensor) -> Tensor:
    """[matrices, rows, columns], each with its singular values moved towards 1, by a Newton-Schulz iteration."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x.to(torch.bfloat16) if x.is_cuda else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if is_tall else x


__all__ = ("Muon", "orthogonal")
