"""Tiny random models with a long context and the embedded models' tokenizer, as folders: for prompts, not for answers.

An agent's first prompt is three times the embedded models' context. What a cache reuses does not depend on what the
weights say, so these compute such prompts in seconds.
"""

import importlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.mlx.runtime.mlx_lm import mlx_lm_module

CONTEXT_LENGTH = 131_072
_COMMON = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    "vocab_size": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "max_position_embeddings": CONTEXT_LENGTH,
}  # fmt: skip
_ATTENTION: dict[str, Any] = {**_COMMON, "model_type": "qwen3", "num_hidden_layers": 2, "rope_theta": 1e6}
_LINEAR = {
    "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4, "full_attention_interval": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25,
                        "mrope_section": [2, 1, 1]},
}  # fmt: skip
_HYBRID: dict[str, Any] = {
    "model_type": "qwen3_5",
    "text_config": {**_COMMON, **_LINEAR, "model_type": "qwen3_5_text", "num_hidden_layers": 4},
}
_WINDOWED: dict[str, Any] = {
    **_COMMON, "model_type": "gemma3_text", "num_hidden_layers": 3, "sliding_window": 512, "sliding_window_pattern": 3,
    "query_pre_attn_scalar": 32, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
}  # fmt: skip
LONG_CONTEXT: Mapping[str, dict[str, Any]] = {"attention": _ATTENTION, "hybrid": _HYBRID, "windowed": _WINDOWED}
"""Configurations by name of the layout."""


def write_long_context_model(layout: str, folder: Path) -> Path:
    """Weights are the same for every call. On the calling thread, which must not compute on MLX afterwards."""
    config = LONG_CONTEXT[layout]
    mx.random.seed(1)
    module = importlib.import_module(f"{mlx_lm_module('models').__name__}.{config['model_type']}")
    return write_model(module.Model(module.ModelArgs.from_dict(config)), config, folder)


def write_model(network: Any, config: Mapping[str, Any], folder: Path) -> Path:
    """A folder with these weights, and the embedded models' tokenizer and template."""
    folder.mkdir(parents=True)
    source = Path(embedded_folder(EMBEDDED_IDS[0]))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(source / name, folder / name)
    mx.save_safetensors(
        str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())), metadata={"format": "mlx"}
    )
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
