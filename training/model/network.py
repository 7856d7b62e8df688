"""Forward passes: token ids to logits, with compiled parts for training and plain ones for everything else."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from training.model.gated_delta import Solve, gated_delta, solve_directly
from training.model.layers import Layers, causal_convolution, rope_tables
from training.model.shape import Shape

_PARTS = ("before_attention", "after_mixing", "before_gated_delta", "split_channels", "gated_norm")


class Network:
    """A forward pass over given weights. `compile_part` wraps the parts that are worth compiling."""

    def __init__(
        self,
        shape: Shape,
        dtype: torch.dtype,
        num_positions: int,
        device: str,
        *,
        solve: Solve = solve_directly,
        compile_part: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:
        self._shape = shape
        self._layers = Layers(shape, dtype)
        self._cos, self._sin = rope_tables(shape, num_positions, device)
        self._solve = solve
        wrap = compile_part or (lambda part: part)
        self._part = {name: wrap(getattr(self._layers, name)) for name in _PARTS}

    def logits(self, ids: Tensor, weights: Mapping[str, Tensor], selected: Tensor | None = None) -> Tensor:
        """ids: [batch, tokens]; returns [batch * tokens, vocabulary], or only the `selected` flat positions."""
        x = self._residual(ids, weights)
        if selected is not None:
            x = x[selected]
        return self._layers.project(self._final_norm(x, weights), weights["model.embed_tokens.weight"])

    def hidden_states(self, ids: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """ids: [batch, tokens]; returns [batch, tokens, hidden] behind the final norm."""
        return self._final_norm(self._residual(ids, weights), weights).view(*ids.shape, self._shape.hidden)

    def _residual(self, ids: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        batch, tokens = ids.shape
        x = functional.embedding(ids, weights["model.embed_tokens.weight"]).view(batch * tokens, self._shape.hidden)
        for layer in range(self._shape.num_layers):
            mix = self._attention if self._shape.attends(layer) else self._gated_delta
            x = mix(x, weights, f"model.layers.{layer}.", batch, tokens)
        return x

    def _final_norm(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        return self._layers.norm(x, weights["model.norm.weight"])

    def _attention(self, x: Tensor, weights: Mapping[str, Tensor], prefix: str, batch: int, tokens: int) -> Tensor:
        shape = self._shape
        tables = [table[:tokens].repeat(batch, 1)[:, None] for table in (self._cos, self._sin)]
        *qkv, gate = self._part["before_attention"](x, *attention_inputs(weights, prefix), *tables)
        rows = [part.view(batch, tokens, part.shape[1], shape.head_dim).transpose(1, 2) for part in qkv]
        attended = functional.scaled_dot_product_attention(*rows, is_causal=True, enable_gqa=True)
        mixed = attended.transpose(1, 2).reshape(batch * tokens, shape.num_heads * shape.head_dim)
        output = weights[prefix + "self_attn.o_proj.weight"]
        return self._part["after_mixing"](x, mixed, gate, output, *feed_forward(weights, prefix), shape.is_hybrid)

    def _gated_delta(self, x: Tensor, weights: Mapping[str, Tensor], prefix: str, batch: int, tokens: int) -> Tensor:
        shape = self._shape
        own = prefix + "linear_attn."
        names = ("in_proj_qkv.weight", "in_proj_z.weight", "in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias")
        norm = weights[prefix + "input_layernorm.weight"]
        channels, z, rate, log_decay = self._part["before_gated_delta"](
            x, norm, *(weights[own + name] for name in names)
        )
        channels = channels.view(batch, tokens, shape.convolution_channels)
        channels = causal_convolution(channels, weights[own + "conv1d.weight"])
        qkv = self._part["split_channels"](channels.reshape(batch * tokens, shape.convolution_channels))
        rows = [part.view(batch, tokens, *part.shape[1:]) for part in (*qkv, log_decay, rate)]
        mixed = gated_delta(*rows, self._solve).reshape(batch * tokens, shape.num_heads, shape.head_dim)
        mixed = self._part["gated_norm"](mixed, weights[own + "norm.weight"], z)
        output = weights[own + "out_proj.weight"]
        return self._part["after_mixing"](x, mixed, mixed[:, :1], output, *feed_forward(weights, prefix), False)


def attention_inputs(weights: Mapping[str, Tensor], prefix: str) -> list[Tensor]:
    """The norm before attention, the projections to queries, keys and values, and the norms of queries and keys."""
    names = ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm")
    return [
        weights[prefix + "input_layernorm.weight"],
        *(weights[f"{prefix}self_attn.{name}.weight"] for name in names),
    ]


def feed_forward(weights: Mapping[str, Tensor], prefix: str) -> list[Tensor]:
    """The norm before the feed-forward part and its three projections."""
    projections = [weights[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down")]
    return [weights[prefix + "post_attention_layernorm.weight"], *projections]


__all__ = ("Network", "attention_inputs", "feed_forward")
