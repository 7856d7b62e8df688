"""Forward passes of Idefics3: pictures to features, token ids with features among them to logits."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from training.vision.conversation import NUM_IMAGE_TOKENS
from training.vision.shape import (
    CONNECTOR,
    CONTEXT_LENGTH,
    EMBEDDING,
    NORM_EPSILON,
    ROPE_BASE,
    TOWER,
    TRUNK,
    SeeingShape,
    tower_layer,
    trunk_layer,
)


class Parts:
    """Layers over given weights. Weights and residual streams are float32; products run in `dtype`."""

    def __init__(self, shape: SeeingShape, dtype: torch.dtype) -> None:
        self._shape = shape
        self._dtype = dtype

    def project(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.linear(
            x.to(self._dtype), weight.to(self._dtype), None if bias is None else bias.to(self._dtype)
        )

    def trunk_layer(self, x: Tensor, cos: Tensor, sin: Tensor, *weights: Tensor) -> Tensor:
        """x: [rows, tokens, hidden]; Llama's layer."""
        norm1, query, key, value, out, norm2, gate, up, down = weights
        h = rms_norm(x, norm1)
        queries, keys, values = (
            self._heads(self.project(h, part), self._shape.head_dim) for part in (query, key, value)
        )
        mixed = functional.scaled_dot_product_attention(
            _rotate(queries, cos, sin), _rotate(keys, cos, sin), values, is_causal=True, enable_gqa=True
        )
        x = x + self.project(mixed.transpose(1, 2).flatten(2), out)
        h = rms_norm(x, norm2)
        return x + self.project(functional.silu(self.project(h, gate)) * self.project(h, up), down)

    def tower_layer(self, x: Tensor, *weights: Tensor) -> Tensor:
        """x: [pictures, patches, hidden]; SigLIP's layer."""
        norm1, norm1_bias, *attention, norm2, norm2_bias, up, up_bias, down, down_bias = weights
        h = layer_norm(x, norm1, norm1_bias)
        *qkv, out = zip(attention[0::2], attention[1::2], strict=True)
        head_dim = self._shape.tower_hidden // self._shape.tower_heads
        mixed = functional.scaled_dot_product_attention(
            *(self._heads(self.project(h, *part), head_dim) for part in qkv)
        )
        x = x + self.project(mixed.transpose(1, 2).flatten(2), *out)
        h = layer_norm(x, norm2, norm2_bias)
        return x + self.project(functional.gelu(self.project(h, up, up_bias), approximate="tanh"), down, down_bias)

    def _heads(self, x: Tensor, head_dim: int) -> Tensor:
        return x.unflatten(2, (-1, head_dim)).transpose(1, 2)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, NORM_EPSILON)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, (x.shape[-1],), weight, bias, NORM_EPSILON)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


class SeeingNetwork:
    """A forward pass over given weights. `compile_part` wraps the layers."""

    def __init__(
        self,
        shape: SeeingShape,
        dtype: torch.dtype,
        device: str,
        compile_part: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:
        self._shape = shape
        self._parts = Parts(shape, dtype)
        wrap = compile_part or (lambda part: part)
        self._trunk_layer, self._tower_layer = wrap(self._parts.trunk_layer), wrap(self._parts.tower_layer)
        exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
        angles = torch.outer(torch.arange(CONTEXT_LENGTH, dtype=torch.float64), 1.0 / ROPE_BASE**exponents).repeat(1, 2)
        self._cos, self._sin = angles.cos().float().to(device), angles.sin().float().to(device)

    def features(self, pictures: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """[pictures, 3, side, side], from -1 to 1, to [pictures, tokens, hidden]."""
        prefix, patch = TOWER + "embeddings.", self._shape.patch
        cut = (
            pictures.unfold(2, patch, patch).unfold(3, patch, patch).permute(0, 2, 3, 1, 4, 5).flatten(1, 2).flatten(2)
        )
        kernel, bias = weights[prefix + "patch_embedding.weight"], weights[prefix + "patch_embedding.bias"]
        x = self._parts.project(cut, kernel.flatten(1), bias).float()
        x = x + weights[prefix + "position_embedding.weight"]
        for layer in range(self._shape.tower_layers):
            x = self._tower_layer(x, *(weights[name] for name in tower_layer(layer)))
        x = layer_norm(x, weights[TOWER + "post_layernorm.weight"], weights[TOWER + "post_layernorm.bias"])
        return self._parts.project(self._merged(x), weights[CONNECTOR]).float()

    def logits(
        self,
        ids: Tensor,
        shown: Tensor,
        features: Tensor,
        weights: Mapping[str, Tensor],
        selected: Tensor | None = None,
    ) -> Tensor:
        """ids: [rows, length]. shown: [places, 2], a picture's first flat position and its place in `features`.

        Returns [rows * length, vocabulary], or only the `selected` flat positions."""
        embedded = functional.embedding(ids, weights[EMBEDDING])
        at = (shown[:, :1] + torch.arange(NUM_IMAGE_TOKENS, device=ids.device)).flatten()
        x = embedded.flatten(0, 1).index_copy(0, at, features[shown[:, 1]].flatten(0, 1)).view_as(embedded)
        cos, sin = self._cos[: ids.shape[1]], self._sin[: ids.shape[1]]
        for layer in range(self._shape.num_layers):
            x = self._trunk_layer(x, cos, sin, *(weights[name] for name in trunk_layer(layer)))
        x = x.flatten(0, 1)
        if selected is not None:
            x = x[selected]
        return self._parts.project(rms_norm(x, weights[TRUNK + "norm.weight"]), weights[EMBEDDING])

    def _merged(self, x: Tensor) -> Tensor:
        """Neighbouring patches side by side, row by row: [pictures, patches / merge^2, hidden * merge^2]."""
        side, merge = self._shape.patches_a_side // self._shape.merge, self._shape.merge
        return x.unflatten(1, (side, merge, side, merge)).transpose(2, 3).flatten(3).flatten(1, 2)


__all__ = ("Parts", "SeeingNetwork")
