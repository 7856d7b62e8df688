"""Configurations of the families that mlx-vlm computes, as small as those of `tiny_configs`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from adapters.mlx.vlm.library import vlm_module
from tests.support.mlx.tiny_configs import COMMON

_SLIDING, _FULL = "sliding_attention", "full_attention"
_DSA = "deepseek_sparse_attention"
_ROPE = {"type": "default", "rope_theta": 1e4}
_HALF_SLIDING = [_FULL, _SLIDING, _SLIDING, _FULL]

_DEEPSEEK_OCR = {
    "num_hidden_layers": 2, "num_key_value_heads": 4, "topk_method": "greedy", "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0, "kv_lora_rank": None, "q_lora_rank": None,
}  # fmt: skip

VLM_FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "aya_vision": {"model_type": "cohere2", "sliding_window_pattern": 2},
    "cohere2_moe": {"sliding_window_pattern": 2, "first_k_dense_replace": 1},
    "deepseek_v4": {
        "head_dim": 32, "o_groups": 2, "o_lora_rank": 16, "compress_ratios": [4, 0, 128, 4], "hc_mult": 2,
        "hc_sinkhorn_iters": 4, "scoring_func": "sqrtsoftplus", "num_hash_layers": 1, "index_topk": 8,
        "index_block": 4, "index_keep": 2,
    },
    "deepseek_vl_v2": {"num_hidden_layers": 2, "num_key_value_heads": 4, "topk_method": "greedy"},
    "deepseekocr": _DEEPSEEK_OCR,
    "deepseekocr_2": _DEEPSEEK_OCR,
    "dots_ocr": {},
    "fastvlm": {"model_type": "llava_qwen2"},
    "flint": {"layer_types": _HALF_SLIDING, "sliding_window": 40, "num_experts": 4, "no_rope_layer_indices": [0]},
    "glm5_next": {
        "layer_types": ["linear_attention", _DSA, "linear_attention", _DSA],
        "indexer_types": ["full", "full", "full", "shared"],
        "num_key_value_heads": 4, "qk_rope_head_dim": 0, "linear_head_dim": 16, "linear_num_heads": 2, "hc_mult": 2,
        "hc_sinkhorn_iters": 4, "index_kpool": 4, "index_topk": 24, "max_position_embeddings": 4096,
    },
    "got": {"model_type": "qwen2"},
    "granite4_vision": {},
    "granite_vision": {},
    "hrm_text": {"prefix_lm": False, "num_hidden_layers": 2, "num_key_value_heads": 4},
    "hy_v4": {"kv_lora_rank": 32},
    "idefics2": {"model_type": "mistral"},
    "internvl": {"model_type": "qwen3"},
    "internvl_chat": {"model_type": "qwen2"},
    "jina_vlm": {},
    "k2_horizon": {},
    "kolibri1": {"layer_types": _HALF_SLIDING},
    "llava_bunny": {"mm_hidden_size": 32, "auto_map": {}},
    "llava_next": {"model_type": "mistral"},
    "llava_onevision": {},
    "llmjpvl": {},
    "longcat_flash_sparse": {
        "num_layers": 2, "zero_expert_num": 2, "oe_vocab_size_ratio": 2, "oe_neighbor_num": 3, "oe_split_num": 2,
        "index_init_tokens": 2, "index_local_tokens": 4, "num_attention_heads": 4,
    },
    "mage_vl": {},
    "mimo_v2": {
        "hybrid_layer_pattern": [0, 1, 1, 0], "moe_layer_freq": [0, 1, 1, 1], "swa_rope_theta": 1e4,
        "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 16, "swa_v_head_dim": 16,
    },
    "mistral_large3": {"num_hidden_layers": 2, "num_key_value_heads": 4},
    "mllama": {"cross_attention_layers": [1]},
    "molmo": {"mlp_hidden_size": 96, "embedding_size": 512},
    "molmo2": {},
    "moondream2": {},
    "moondream3": {"num_key_value_heads": 4, "rope_dim": 8},
    "nemotron_h_nano_omni": {
        "model_type": "nemotron_h", "mamba_num_heads": 8, "mamba_head_dim": 16, "mamba_proj_bias": False,
        "ssm_state_size": 32, "conv_kernel": 4, "n_groups": 2, "time_step_limit": [0.01, 10.0],
        "hybrid_override_pattern": ["M", "*", "M", "-"],
    },
    "phi4_siglip": {},
    "plamo2vl": {"hidden_size_per_head": 16, "mamba_num_heads": 4, "mamba_d_state": 16},
    "qwen4_exp": {
        "model_type": "qwen4_exp_text", "full_attention_interval": 2, "hc_count": 2, "hc_lowrank": 16,
        "ple_layer_ids": [1], "ngram_vocab_size_base": 64, "make_ngram_vocab_size_divisible_by": 8,
        "heads_per_ngram": 2, "split_ngram_parts": 1,
        "indexer_n_heads": 2, "indexer_head_dim": 16, "indexer_budget": 24, "eos_token_id": 2,
        "rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5},
    },
    "step3p7": {
        "num_attention_groups": 2, "layer_types": _HALF_SLIDING, "moe_top_k": 2, "share_expert_dim": 32,
        "moe_layers_enum": "1,2,3", "use_head_wise_attn_gate": True,
        "attention_other_setting": {"num_attention_heads": 4, "num_attention_groups": 2, "head_dim": 16},
    },
    "xing4_0": {},
}  # fmt: skip

_FLAT = frozenset({"fastvlm", "got", "llava_bunny", "mimo_v2"})
"""Families with a class of the text's settings, which their files have at the root."""

_TOWER: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "embed_dim", "width"), 32),
    **dict.fromkeys(("num_hidden_layers", "depth", "layers"), 1),
    **dict.fromkeys(("num_attention_heads", "num_heads", "heads"), 2),
    **{"out_hidden_size": 64, "image_size": 28, "patch_size": 14, "in_channels": 3, "num_channels": 3},
}
_DEEPSEEK_TOWER = {"model_type": "vision", "mlp_ratio": 1.0}
_OWN_TOWERS: Mapping[str, Mapping[str, Any]] = {
    "aya_vision": {"model_type": "siglip_vision_model"},
    **dict.fromkeys(("deepseek_vl_v2", "deepseekocr"), _DEEPSEEK_TOWER),
    "deepseekocr_2": {**_DEEPSEEK_TOWER, "width": {}},
    "fastvlm": {"model_type": "llava_qwen2"},
    "granite4_vision": {"model_type": "siglip_vision_model", "hidden_size": 64, "num_attention_heads": 1},
    "internvl_chat": {"model_type": "intern_vit_6b"},
    "llava_bunny": {"model_type": "siglip_vision_model"},
    "llava_next": {"model_type": "clip_vision_model"},
    "llmjpvl": {"model_type": "siglip_vision_model"},
    "mage_vl": {"hidden_size": 64, "num_attention_heads": 1},
    "mistral_large3": {"model_type": "pixtral", "head_dim": 16},
    "phi4_siglip": {"model_type": "siglip2_vision_model"},
    "plamo2vl": {"model_type": "siglip_vision_model"},
}


_PROJECTOR = {"model_type": "mlp_projector", "projector_type": "linear", "n_embed": 64}
_ROOTS: Mapping[str, Mapping[str, Any]] = {
    "deepseek_vl_v2": {
        "projector_config": {**_PROJECTOR, "projector_type": "downsample_mlp_gelu", "input_dim": 32},
    },
    "deepseekocr": {"projector_config": {**_PROJECTOR, "input_dim": 2048}},
    "deepseekocr_2": {"projector_config": {**_PROJECTOR, "input_dim": 896}},
    "idefics2": {
        "perceiver_config": {
            **{"model_type": "idefics2", "num_key_value_heads": 1, "resampler_n_latents": 4, "resampler_depth": 1},
            **{"resampler_n_heads": 2, "resampler_head_dim": 16},
        },
    },
}
"""What files have beside the settings of text and tower."""


def vlm_config_of(family: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What the model's config.json would say. `changes` go where the text model's values are."""
    package = vlm_module(f"models.{family}")
    arguments = getattr(package, "TextConfig", package.ModelConfig)
    known = {field.name for field in dataclasses.fields(arguments)}
    text = {key: value for key, value in COMMON.items() if key in known} | dict(VLM_FAMILIES[family]) | dict(changes)
    outer: dict[str, Any] = {"model_type": family, **_ROOTS.get(family, {})}
    if hasattr(package, "VisionConfig"):
        fields = {field.name for field in dataclasses.fields(package.VisionConfig)}
        tower = {key: value for key, value in _TOWER.items() if key in fields}
        outer["vision_config"] = tower | dict(_OWN_TOWERS.get(family, {"model_type": family}))
    if arguments is package.ModelConfig or family in _FLAT:
        return {**text, **outer}
    return {**outer, "vocab_size": text["vocab_size"], "text_config": text}
