"""Models of real shapes with random weights, built in memory: speed does not depend on the weights."""

import importlib
from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from bench.common.long_context_models import LONG_CONTEXT

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "vocab_size": 128256,
    "rope_theta": 5e5, "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_4B = {
    "model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36, "intermediate_size": 9728,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6,
    "vocab_size": 151936, "rope_theta": 1e6, "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip
QWEN35_LAYERS: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "intermediate_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320,
        "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "num_experts": 32,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "max_position_embeddings": 262144,
        "rope_parameters": {"type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                            "mrope_section": [11, 11, 10]},
    },
}  # fmt: skip
"""Three recurrent layers and one that attends, at the real width of Qwen3.5's mixture of experts."""
TINY = {
    "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6, "vocab_size": 512,
    "rope_theta": 1e4, "max_position_embeddings": 65536, "tie_word_embeddings": True,
}  # fmt: skip

SHAPES: Mapping[str, dict[str, Any]] = {
    "llama-8b": LLAMA_8B,
    "qwen3-4b": QWEN3_4B,
    "qwen3.5-4-layers": QWEN35_LAYERS,
    "tiny": TINY,
    "tiny-hybrid": LONG_CONTEXT["hybrid"],
}
"""Configurations by name."""


def build_shape(name: str, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """The network, evaluated on this thread, and its configuration, with `changes` at its top level."""
    config = {**SHAPES[name], **changes}
    module = importlib.import_module(f"{mlx_lm_module('models').__name__}.{config['model_type']}")
    network = module.Model(module.ModelArgs.from_dict(config))
    _fill(network)
    network.eval()
    mx.eval(network.parameters())
    mx.clear_cache()
    return network, config


def _fill(network: Any) -> None:
    """Module by module, so that the float32 initial values of the whole never exist at once."""
    for path, module in list(network.named_modules()):
        own = [name for name, value in module.items() if isinstance(value, mx.array)]
        module.update({name: _random(name, path, module[name]) for name in own})
        mx.eval([module[name] for name in own])


def _random(name: str, path: str, value: mx.array) -> mx.array:
    if name == "A_log":
        return mx.log(mx.random.uniform(1, 16, value.shape))
    if name == "dt_bias":
        return mx.full(value.shape, -3, mx.bfloat16)
    if "norm" in path or "norm" in name:
        return mx.ones(value.shape, mx.bfloat16)
    return (mx.random.normal(value.shape, dtype=mx.bfloat16) * 0.02).astype(mx.bfloat16)
