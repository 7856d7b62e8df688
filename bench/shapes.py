"""Models of real shapes with random weights, built in memory: speed does not depend on what the weights say."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten

from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from bench.long_context_models import LONG_CONTEXT

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
QWEN35_MOE: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "intermediate_size": 512, "num_hidden_layers": 40,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320,
        "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "num_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "max_position_embeddings": 262144,
        "rope_parameters": {"type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                            "mrope_section": [11, 11, 10]},
    },
}  # fmt: skip
QWEN35_LAYERS = {
    **QWEN35_MOE,
    "text_config": {**QWEN35_MOE["text_config"], "num_hidden_layers": 4, "num_experts": 32},
}
"""Three recurrent layers and one that attends, at their real width."""
TINY = {
    "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6, "vocab_size": 512,
    "rope_theta": 1e4, "max_position_embeddings": 65536, "tie_word_embeddings": True,
}  # fmt: skip

SHAPES: Mapping[str, tuple[dict[str, Any], int]] = {
    "llama-8b": (LLAMA_8B, 0),
    "qwen3-4b": (QWEN3_4B, 0),
    "qwen3-4b-4bit": (QWEN3_4B, 4),
    "qwen3.5-moe-4bit": (QWEN35_MOE, 4),
    "qwen3.5-4-layers": (QWEN35_LAYERS, 0),
    "tiny": (TINY, 0),
    "tiny-hybrid": (LONG_CONTEXT["hybrid"], 0),
}
"""Name to configuration and bits (0: bfloat16)."""


def build_shape(name: str, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """The network, evaluated on this thread, and its configuration, with `changes` at its top level."""
    config, bits = SHAPES[name]
    config = {**config, **changes}
    module = importlib.import_module(f"{mlx_lm_module('models').__name__}.{config['model_type']}")
    network = module.Model(module.ModelArgs.from_dict(config))
    _fill(network, bits)
    network.eval()
    mx.eval(network.parameters())
    mx.clear_cache()
    return network, config


def _fill(network: Any, bits: int) -> None:
    """Module by module, so that the float32 initial values of the whole never exist at once."""
    predicate: Callable[[str, Any], Any] = getattr(network, "quant_predicate", None) or (lambda _name, _module: True)
    quantised: list[tuple[str, Any]] = []
    for path, module in list(network.named_modules()):
        own = [name for name, value in module.items() if isinstance(value, mx.array)]
        module.update({name: _random(name, path, module[name]) for name in own})
        mx.eval([module[name] for name in own])
        if not (bits and hasattr(module, "to_quantized") and module.weight.shape[-1] % 64 == 0):
            continue
        wanted = predicate(path, module)
        if wanted:
            small = module.to_quantized(**(wanted if isinstance(wanted, dict) else {"group_size": 64, "bits": bits}))
            mx.eval(small.parameters())
            module.update({"weight": mx.zeros((1,))})
            quantised.append((path, small))
    if quantised:
        network.update_modules(tree_unflatten(quantised))


def _random(name: str, path: str, value: mx.array) -> mx.array:
    if name == "A_log":
        return mx.log(mx.random.uniform(1, 16, value.shape))
    if name == "dt_bias":
        return mx.full(value.shape, -3, mx.bfloat16)
    if "norm" in path or "norm" in name:
        return mx.ones(value.shape, mx.bfloat16)
    return (mx.random.normal(value.shape, dtype=mx.bfloat16) * 0.02).astype(mx.bfloat16)
