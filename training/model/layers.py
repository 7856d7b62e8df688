"""The parts of a layer that work on flat tokens [tokens, ...].

They have one shape for every row length, so each is compiled once. Weights stay float32; products run in `dtype`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from training.model.shape import CONVOLUTION_WIDTH, NORM_EPSILON, Shape


@dataclass(frozen=True, slots=True)
class Layers:
    """`dtype`: bfloat16 on a GPU, float32 elsewhere and for reference results."""

    shape: Shape
    dtype: torch.dtype

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        normed = functional.rms_norm(x.float(), (x.shape[-1],), None, NORM_EPSILON)
        return (normed * ((1 + weight) if self.shape.is_hybrid else weight)).to(self.dtype)

    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, weight.to(self.dtype))

    def before_attention(
        self,
        x: Tensor,
        norm: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_norm: Tensor,
        key_norm: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values [tokens, heads, dim], and the output gate (of width 1 where there is none)."""
        shape = self.shape
        count, heads, dim = x.shape[0], shape.num_heads, shape.head_dim
        h = self.norm(x, norm)
        queries = self.project(h, query)
        keys = self.project(h, key).view(count, shape.num_kv_heads, dim)
        values = self.project(h, value).view(count, shape.num_kv_heads, dim)
        if shape.is_hybrid:
            queries, gate = queries.view(count, heads, 2 * dim).chunk(2, -1)
            gate = gate.reshape(count, heads * dim)
        else:
            queries, gate = queries.view(count, heads, dim), queries[:, :1]
        queries = self._rotate(self.norm(queries, query_norm), cos, sin)
        return queries, self._rotate(self.norm(keys, key_norm), cos, sin), values, gate

    def after_mixing(
        self,
        x: Tensor,
        mixed: Tensor,
        gate: Tensor,
        output: Tensor,
        norm: Tensor,
        mlp_gate: Tensor,
        mlp_up: Tensor,
        mlp_down: Tensor,
        is_gated: bool,
    ) -> Tensor:
        """Add the mixed tokens to the residual stream, then the feed-forward part."""
        if is_gated:
            mixed = mixed * torch.sigmoid(gate)
        x = x + self.project(mixed.to(self.dtype), output).to(x.dtype)
        h = self.norm(x, norm)
        inner = functional.silu(self.project(h, mlp_gate)) * self.project(h, mlp_up)
        return x + self.project(inner, mlp_down).to(x.dtype)

    def before_gated_delta(
        self, x: Tensor, norm: Tensor, qkv: Tensor, z: Tensor, b: Tensor, a: Tensor, a_log: Tensor, dt_bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Channels for the convolution, the output gate, the rate, and the logarithm of the decay."""
        h = self.norm(x, norm)
        rate = torch.sigmoid(self.project(h, b).float())
        log_decay = -a_log.float().exp() * functional.softplus(self.project(h, a).float() + dt_bias)
        return self.project(h, qkv), self.project(h, z), rate, log_decay

    def split_channels(self, channels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [tokens, heads, dim] after the convolution; unit length, queries scaled."""
        heads, dim, count = self.shape.num_heads, self.shape.head_dim, channels.shape[0]
        parts = functional.silu(channels.float()).split([self.shape.state_width] * 3, -1)
        queries, keys, values = (part.reshape(count, heads, dim) for part in parts)
        return _unit(queries) * dim**-0.5, _unit(keys), values

    def gated_norm(self, x: Tensor, weight: Tensor, z: Tensor) -> Tensor:
        """[tokens, heads, dim] to [tokens, heads * dim]"""
        normed = functional.rms_norm(x.float(), (self.shape.head_dim,), None, NORM_EPSILON) * weight
        return (
            (normed * functional.silu(z.float().view_as(normed)))
            .to(self.dtype)
            .reshape(x.shape[0], self.shape.state_width)
        )

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        width = self.shape.rotary_dim
        turned = x[..., :width].float()
        first, second = turned[..., : width // 2], turned[..., width // 2 :]
        turned = (turned * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)
        return torch.cat([turned, x[..., width:]], -1) if width < x.shape[-1] else turned


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def causal_convolution(x: Tensor, weight: Tensor) -> Tensor:
    """Depthwise over time. x: [batch, tokens, channels]; weight: [channels, 1, width]."""
    tokens = x.shape[1]
    padded = functional.pad(x, (0, 0, CONVOLUTION_WIDTH - 1, 0))
    weight = weight.to(x.dtype)
    return sum(padded[:, at : at + tokens] * weight[:, 0, at] for at in range(CONVOLUTION_WIDTH))


def rope_tables(shape: Shape, num_positions: int, device: str) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, rotary_dim], computed in float64."""
    exponents = torch.arange(0, shape.rotary_dim, 2, dtype=torch.float64) / shape.rotary_dim
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float64), 1.0 / shape.rope_base**exponents)
    both = torch.cat([angles, angles], 1)
    return both.cos().float().to(device), both.sin().float().to(device)


__all__ = ("Layers", "causal_convolution", "rope_tables")
