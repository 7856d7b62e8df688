"""Memory that a forward pass needs beyond the states, by the numbers in config.json. It errs upwards: what a load
measures, and later chunks, correct it (`correction`)."""

from collections.abc import Mapping
from typing import Any, cast

from domain.memory.shape import StepCost

_NESTED = ("text_config", "llm_config", "language_config")
_WIDE_BYTES = 4
"""Recurrent layers and scores are computed in float32."""
_SCAN_BLOCK = 256
"""Tokens that a state space model compares with each other at once."""


def step_of_config(config: Mapping[str, Any], dtype_bytes: int, chunk: int, most_ahead_bytes: int = 0) -> StepCost:
    """Two layers with all of their temporaries, attention by no fused kernel. A value that the configuration does not
    name counts as a common one. `dtype_bytes`: of one activation. `most_ahead_bytes`: what the device may hold of other
    layers' work meanwhile, of which chunks of `chunk` tokens have as much as there are layers."""
    hidden = number(config, "hidden_size", "d_model", "n_embd", "dim", "model_dim", "hidden_dim") or 4096
    heads = number(config, "num_attention_heads", "n_heads", "n_head", "num_heads")
    heads = heads or max(1, hidden // (number(config, "head_dim") or 64))
    layer = dtype_bytes * (6 * hidden + 8 * heads * _head_dim(config, hidden, heads) + _feed_forward(config, hidden))
    layer += _recurrent(config, hidden)
    num_layers = (
        number(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers") or 32
    )
    return StepCost(
        base_bytes=min(num_layers * layer * chunk, most_ahead_bytes),
        token_bytes=2 * layer,
        seen_bytes=4 * heads * _seen_dim(config, hidden, heads) * dtype_bytes,
        pair_bytes=3 * heads * dtype_bytes,
    )


def _head_dim(config: Mapping[str, Any], hidden: int, heads: int) -> int:
    nope = number(config, "qk_nope_head_dim") or 0
    own = number(config, "head_dim", "hidden_size_per_head") or max(1, hidden // heads)
    return max(own, nope + (number(config, "qk_rope_head_dim") or 0))


def _seen_dim(config: Mapping[str, Any], hidden: int, heads: int) -> int:
    """Of each head, for each token before: a copy of keys or values; latents are expanded to both."""
    dim = _head_dim(config, hidden, heads)
    return dim + (number(config, "v_head_dim") or dim) if number(config, "kv_lora_rank") else dim


def _feed_forward(config: Mapping[str, Any], hidden: int) -> int:
    inner = number(config, "intermediate_size", "d_ff", "n_inner", "block_ff_dim", "hidden_dim") or 4 * hidden
    experts = number(config, "num_experts_per_tok", "moe_topk", "experts_per_token", "num_experts_per_token") or 1
    width = number(config, "moe_intermediate_size", "expert_hidden_size") or inner
    return max(4 * inner, experts * 4 * (width + hidden))


def _recurrent(config: Mapping[str, Any], hidden: int) -> int:
    """Bytes a token of a state space layer: a block's scores by head, or the state at every token of the chunk."""
    state = number(config, "state_size", "mamba_d_state", "ssm_state_size")
    if state is None:
        return 0
    if heads := number(config, "mamba_num_heads", "mamba_n_heads", "num_heads"):
        return 4 * _WIDE_BYTES * heads * _SCAN_BLOCK
    return 6 * _WIDE_BYTES * (number(config, "mamba_expand") or 2) * hidden * state


def number(config: Mapping[str, Any], *names: str) -> int | None:
    """The first of these that holds a positive whole number, in the nested text configuration first."""
    nested = [config[name] for name in _NESTED if name in config]
    for level in (*nested, config):
        if not isinstance(level, Mapping):
            continue
        for name in names:
            value = cast(Mapping[str, Any], level).get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
