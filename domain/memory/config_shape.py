"""What a forward pass needs beyond the states, by the numbers in config.json: for the few families whose code cannot be
traced. Ample rather than exact."""

from collections.abc import Mapping
from typing import Any, cast

from domain.memory.shape import StepCost

_NESTED = ("text_config", "llm_config", "language_config")


def step_of_config(config: Mapping[str, Any], dtype_bytes: int) -> StepCost:
    """Two layers at once, all of their temporaries, attention by no fused kernel. A value that the configuration does
    not name counts as one that is common. `dtype_bytes`: of one activation."""
    hidden = number(config, "hidden_size", "d_model", "n_embd", "dim") or 4096
    heads = number(config, "num_attention_heads", "n_heads", "n_head") or max(1, hidden // 128)
    width = heads * (number(config, "head_dim") or max(1, hidden // heads))
    inner = number(config, "intermediate_size", "d_ff", "n_inner", "hidden_dim") or 4 * hidden
    experts = number(config, "num_experts_per_tok", "moe_topk", "experts_per_token") or 1
    expert_width = number(config, "moe_intermediate_size", "expert_hidden_size") or inner
    feed_forward = max(4 * inner, experts * 4 * (expert_width + hidden))
    token = 2 * dtype_bytes * (6 * hidden + 8 * width + feed_forward)
    return StepCost(token_bytes=token, seen_bytes=4 * width * dtype_bytes, pair_bytes=3 * heads * dtype_bytes)


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


__all__ = ("number", "step_of_config")
