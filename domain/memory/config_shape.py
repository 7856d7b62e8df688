"""A MemoryShape from what config.json says, without the model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from domain.memory.shape import MemoryShape, StateCost

_NESTED = ("text_config", "llm_config", "language_config")
_SAMPLING_COPIES = 3
"""float32 copies of a row of logits that choosing a token may hold at once."""


def transient_shape(config: Mapping[str, Any], dtype_bytes: int, num_logits: int) -> MemoryShape:
    """What a step needs beyond the states, as a shape without weights and states.

    `num_logits`: width of the output. A value that the configuration does not name counts as one that is common.
    """
    hidden = number(config, "hidden_size", "d_model", "n_embd", "dim") or 4096
    heads = number(config, "num_attention_heads", "n_heads", "n_head") or max(1, hidden // 128)
    inner = number(config, "intermediate_size", "d_ff", "n_inner", "hidden_dim") or 4 * hidden
    experts = number(config, "num_experts_per_tok", "moe_topk", "experts_per_token") or 0
    expert_width = number(config, "moe_intermediate_size", "expert_hidden_size") or inner
    widest = max(inner, experts * (expert_width + hidden))
    return MemoryShape(
        score_bytes=heads * dtype_bytes,
        activation_bytes=(4 * hidden + 3 * widest) * dtype_bytes,
        logit_bytes=num_logits * (dtype_bytes + 4 * _SAMPLING_COPIES),
    )


def with_states(shape: MemoryShape, weight_bytes: int, states: tuple[StateCost, ...], num_layers: int) -> MemoryShape:
    """The same shape with weights and states; a buffer of one layer grows at a time."""
    grown = sum(state.bytes_per_token for state in states if state.window is None) // max(1, num_layers)
    return replace(shape, weight_bytes=weight_bytes, states=states, grown_bytes=grown)


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


__all__ = ("number", "transient_shape", "with_states")
