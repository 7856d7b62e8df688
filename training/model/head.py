"""Qwen3.5's multi-token-prediction head: one attention layer that predicts the token after the next one.

At position i it joins the embedding of token i with the trunk's hidden state of token i - 1, behind the final norm, and
predicts token i + 1. A draft goes on from there: at i + 1 the head takes its own hidden state of i instead.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from training.model.layers import Layers, rope_tables
from training.model.network import attention_inputs, feed_forward
from training.model.shape import Shape

_LAYER = "mtp.layers.0."


class Head:
    """A forward pass over given weights, the trunk's embedding among them."""

    def __init__(self, shape: Shape, dtype: torch.dtype, num_positions: int, device: str) -> None:
        self._shape = shape
        self._layers = Layers(shape, dtype)
        self._cos, self._sin = rope_tables(shape, num_positions, device)

    def hidden_states(self, ids: Tensor, trunk: Tensor, weights: Mapping[str, Tensor], depth: int) -> list[Tensor]:
        """ids: [batch, tokens]; trunk: [batch, tokens, hidden]. Returns [batch, tokens, hidden] for each depth.

        At depth d, position i is the d-th guess of a draft: the hidden states before i - d are the trunk's, those since
        the head's own, and its keys and values likewise."""
        batch, tokens = ids.shape
        embedded = functional.embedding(ids, weights["model.embed_tokens.weight"])
        embedded = self._layers.norm(embedded, weights["mtp.pre_fc_norm_embedding.weight"])
        tables = [table[:tokens].repeat(batch, 1)[:, None] for table in (self._cos, self._sin)]
        is_not_first = (torch.arange(tokens, device=ids.device) > 0)[:, None]
        hidden, found = trunk, list[Tensor]()
        keys, values = list[Tensor](), list[Tensor]()
        for _ in range(depth):
            before = self._layers.norm(hidden.roll(1, dims=1), weights["mtp.pre_fc_norm_hidden.weight"])
            joined = torch.cat([embedded, before], -1) * is_not_first
            x = self._layers.project(joined, weights["mtp.fc.weight"]).float().view(batch * tokens, -1)
            *qkv, gate = self._layers.before_attention(x, *attention_inputs(weights, _LAYER), *tables)
            query, key, value = [part.view(batch, tokens, *part.shape[1:]).transpose(1, 2) for part in qkv]
            keys.append(self._for_each_query(key))
            values.append(self._for_each_query(value))
            mixed = _attend(query, keys, values).transpose(1, 2).reshape(batch * tokens, -1)
            output = weights[_LAYER + "self_attn.o_proj.weight"]
            x = self._layers.after_mixing(x, mixed, gate, output, *feed_forward(weights, _LAYER), True)
            hidden = self._layers.norm(x, weights["mtp.norm.weight"]).view(batch, tokens, -1)
            found.append(hidden)
        return found

    def logits(self, hidden: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """hidden: [tokens, hidden]; returns [tokens, vocabulary], by the matrix that the trunk uses."""
        return self._layers.project(hidden, weights["model.embed_tokens.weight"])

    def _for_each_query(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self._shape.num_heads // self._shape.num_kv_heads, dim=1)


def _attend(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attention [batch, heads, tokens, dim] at the last depth, over the keys and values of each depth up to it."""
    depth, tokens = len(keys) - 1, query.shape[2]
    if depth == 0:
        return functional.scaled_dot_product_attention(query, keys[0], values[0], is_causal=True)
    at = torch.arange(tokens, device=query.device)
    distance = at[:, None] - at
    seen = [distance >= depth, *(distance == depth - earlier for earlier in range(1, depth + 1))]
    mask = torch.cat(seen, -1)
    return functional.scaled_dot_product_attention(query, torch.cat(keys, 2), torch.cat(values, 2), attn_mask=mask)


__all__ = ("Head",)
