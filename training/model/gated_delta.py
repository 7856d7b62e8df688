"""The gated delta rule over whole sequences: products inside chunks of 64 tokens, and a state between chunks."""

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

_CHUNK = 64

Solve = Callable[[Tensor, Tensor], Tensor]
"""(unit lower triangular matrix, right side) -> solution, batched."""


def solve_directly(matrix: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(matrix, right, upper=False, unitriangular=True)


def solve_by_blocks(matrix: Tensor, right: Tensor) -> Tensor:
    """Invert blocks of 1, 2, 4 ... rows, each from its two halves: products only, faster on some GPUs."""
    rows = matrix.shape[-1]
    size = 1
    inverse = torch.ones(*matrix.shape[:-2], rows, 1, 1, device=matrix.device)
    while size < rows:
        num_pairs = rows // (2 * size)
        pairs = matrix.reshape(*matrix.shape[:-2], num_pairs, 2 * size, num_pairs, 2 * size)
        below = pairs.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)[..., size:, :size]
        upper, lower = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        corner = -below if size == 1 else -(lower @ below @ upper)
        top = torch.cat([upper, torch.zeros_like(upper)], -1)
        inverse = torch.cat([top, torch.cat([corner, lower], -1)], -2)
        size *= 2
    return inverse[..., 0, :, :] @ right


def faster_solver(num_heads: int, head_dim: int, device: str, log: Callable[..., None]) -> Solve:
    """Measure both on a batch of 32k tokens, forward and backward."""
    seconds: dict[Solve, float] = {}
    for solve in (solve_by_blocks, solve_directly):
        lower = (torch.randn(16, num_heads, 32, _CHUNK, _CHUNK, device=device) * 0.05).tril(-1)
        matrix = (lower + torch.eye(_CHUNK, device=device)).requires_grad_(True)
        right = torch.randn(16, num_heads, 32, _CHUNK, 2 * head_dim, device=device, requires_grad=True)
        for is_timed in (False, True, True):
            started = time.perf_counter()
            solve(matrix, right).square().sum().backward()
            torch.cuda.synchronize()
            if is_timed:
                seconds[solve] = seconds.get(solve, 0.0) + (time.perf_counter() - started) / 2
        log(f"{solve.__name__}: {seconds[solve] * 1e3:.1f} ms for 32k tokens")
    return min(seconds, key=lambda solve: seconds[solve])


def gated_delta(queries: Tensor, keys: Tensor, values: Tensor, log_decay: Tensor, rate: Tensor, solve: Solve) -> Tensor:
    """All [batch, tokens, heads, dim] (decay and rate without dim), float32; returns outputs shaped as `values`."""
    batch, tokens, heads = keys.shape[:3]
    chunk = _CHUNK if tokens >= _CHUNK else tokens
    padding = -tokens % chunk
    num_chunks = (tokens + padding) // chunk

    def chunked(x: Tensor) -> Tensor:
        """[batch, heads, chunks, chunk, ...]"""
        x = functional.pad(x, (0, 0) * (x.dim() - 2) + (0, padding)).transpose(1, 2)
        return x.reshape(batch, heads, num_chunks, chunk, *x.shape[3:]).contiguous()

    queries, keys, values, log_decay, rate = map(chunked, (queries, keys, values, log_decay, rate))
    log_decay = log_decay.cumsum(-1)
    between = (log_decay[..., :, None] - log_decay[..., None, :]).tril().exp().tril()
    rated = keys * rate[..., None]
    matrix = (rated @ keys.transpose(-1, -2) * between).tril(-1) + torch.eye(chunk, device=keys.device)
    right = torch.cat([values * rate[..., None], rated * log_decay.exp()[..., None]], -1)
    new_values, from_state = solve(matrix, right).split([values.shape[-1], keys.shape[-1]], -1)
    states, corrected = _states(keys, new_values, from_state, log_decay)
    outputs = (queries * log_decay.exp()[..., None]) @ states
    outputs = outputs + (queries @ keys.transpose(-1, -2) * between) @ corrected
    return outputs.reshape(batch, heads, num_chunks * chunk, values.shape[-1])[:, :, :tokens].transpose(1, 2)


def _states(keys: Tensor, new_values: Tensor, from_state: Tensor, log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """The state before each chunk, and the values as corrected by it; one pass over the chunks."""
    batch, heads, num_chunks, chunk, key_dim = keys.shape
    value_dim = new_values.shape[-1]
    decayed = (keys * (log_decay[..., -1:] - log_decay).exp()[..., None]).transpose(-1, -2)
    remaining = log_decay[..., -1].exp()[..., None, None]

    def by_chunk(x: Tensor) -> tuple[Tensor, ...]:
        return x.reshape(batch * heads, num_chunks, *x.shape[3:]).unbind(1)

    state = torch.zeros(batch * heads, key_dim, value_dim, device=keys.device)
    states: list[Tensor] = []
    corrected: list[Tensor] = []
    parts = map(by_chunk, (new_values, from_state.contiguous(), decayed, remaining))
    for new_value, read, write, kept in zip(*parts, strict=True):
        states.append(state)
        corrected.append(torch.baddbmm(new_value, read, state, alpha=-1))
        state = torch.baddbmm(state * kept, write, corrected[-1])
    return (
        torch.stack(states, 1).view(batch, heads, num_chunks, key_dim, value_dim),
        torch.stack(corrected, 1).view(batch, heads, num_chunks, chunk, value_dim),
    )


__all__ = ("Solve", "faster_solver", "gated_delta", "solve_by_blocks", "solve_directly")
