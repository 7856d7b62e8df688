"""Configurations of nearly every model family of mlx-lm, so small that a forward pass takes milliseconds.

Hidden size 64, two to four layers, 256 tokens, windows of 40. `COMMON` holds the values most families share under their
various names; a family takes those its arguments know, then its own from `FAMILIES`. Families in `WRAPPED` nest the
configuration of a text model.
"""

from collections.abc import Mapping
from typing import Any

VOCAB_SIZE = 256
WINDOW = 40

_H, _L, _V, _W = 64, 4, VOCAB_SIZE, WINDOW

COMMON: Mapping[str, Any] = {
    **dict.fromkeys(("vocab_size", "num_vocab"), _V),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "model_dim", "hidden_dim"), _H),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_transformer_layers"), _L),
    **dict.fromkeys(("intermediate_size", "n_inner", "ff_intermediate_size", "ffn_hidden_size"), 96),
    **dict.fromkeys(("intermediate_size_mlp",), 96),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "n_kv_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps"), 1e-5),
    **dict.fromkeys(("norm_epsilon", "layernorm_epsilon"), 1e-5),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 4096),
    **dict.fromkeys(("rope_theta",), 10000.0),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "conv_bias", "tie_word_embeddings"), False),
    **dict.fromkeys(("use_conv_bias", "use_qk_norm", "norm_topk_prob"), True),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "num_shared_expert"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("shared_expert_intermediate_size",), 32),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "moe_layer_freq", "decoder_sparse_step"), 1),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "v_head_dim", "head_dim"), 16),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "attention_window_size", "window_size"), _W),
    **dict.fromkeys(("routed_scaling_factor", "logits_scaling", "embedding_multiplier", "residual_multiplier"), 1.0),
    **dict.fromkeys(("rotary_pct", "partial_rotary_factor"), 0.5),
    "rotary_emb_base": 10000,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "mlp_only_layers": [],
    "qk_rope_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "conv_L_cache": 3,
    "hidden_act": "silu",
    "attention_multiplier": 0.25,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 24,
}

_SLIDING, _FULL = "sliding_attention", "full_attention"
_THREE_TO_ONE = [_SLIDING] * 3 + [_FULL]
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_ROPES = {_FULL: {"rope_type": "default", "rope_theta": 1e6}, _SLIDING: _ROPE}
_SCALED_ROPE = {**_ROPE, "original_max_position_embeddings": 4096, "llama_4_scaling_beta": 0.1}
_YARN = {
    "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
_LONG_ROPE = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 4}
_FULL_HEADS = {"num_key_value_heads": 4}
_TWO, _THREE = {"num_hidden_layers": 2}, {"num_hidden_layers": 3}
_MAMBA2 = {"conv_kernel": 4, "n_groups": 2, "time_step_limit": [0.01, 10.0]}
_NEMOTRON_H = {
    **_MAMBA2, "mamba_num_heads": 8, "mamba_head_dim": 16, "mamba_proj_bias": False, "ssm_state_size": 32,
}  # fmt: skip
_NO_OP = {"n_heads_in_group": None, "no_op": True, "replace_with_linear": False}
_FFN = {"ffn_mult": 1.3125, "no_op": False, "replace_with_linear": False}
_LONGCAT = {
    "attention_method": "MLA", "zero_expert_type": "identity", "zero_expert_num": 2, "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True, "num_layers": 2,
}  # fmt: skip
_KIMI = {"num_heads": 4, "head_dim": 32, "kda_layers": [1, 3], "short_conv_kernel_size": 4}

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "afm7": {"num_kv_reuse_layers": 2},
    "afmoe": {"layer_types": _THREE_TO_ONE, "num_dense_layers": 1},
    "apertus": {"post_norm": True, "qk_norm": True},
    "baichuan_m1": {"sliding_window_layers": [0, 2], "conv_window": 2},
    "bailing_hybrid": {"layer_group_size": 2, "group_norm_size": 1, **_FULL_HEADS},
    "bailing_moe": {},
    "bailing_moe_linear": {"layer_group_size": 2, "group_norm_size": 1, **_FULL_HEADS},
    "bailing_moe_v3": {"layer_group_size": 2, "moe_shared_expert_intermediate_size": 32, "head_dim": 32},
    "cohere": {},
    "cohere2": {"sliding_window_pattern": 2},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000},
    },
    "deepseek": {},
    "deepseek_v2": {"topk_method": "greedy", **_FULL_HEADS, "rope_scaling": _YARN},
    "deepseek_v3": {**_FULL_HEADS, **_TWO},
    "deepseek_v32": {**_FULL_HEADS, **_TWO},
    "deepseek_v41": {
        "head_dim": 32, "o_groups": 2, "o_lora_rank": 16, "num_hidden_layers": 4, "compress_ratios": (0, 4, 4, 4),
        "kv_source_layer_ids": (1, 3), "index_source_layer_ids": (1, 3), "candidate_source_layer_id": 1,
        "candidate_topk_blocks": 3, "candidate_block_size": 4, "index_head_dim": 32, "index_topk": 6,
        "rms_norm_eps": 1e-6, "scoring_func": "sqrtsoftplus", "hc_mult": 2, "hc_sinkhorn_iters": 4,
    },
    "dots1": {},
    "ernie4_5": {},
    "ernie4_5_moe": {},
    "exaone": {},
    "exaone4": {"rope_scaling": None, "sliding_window_pattern": "LLG"},
    "exaone_moe": {"layer_types": _THREE_TO_ONE, "is_moe_layer": [False, True, True, True]},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 32, **_TWO},
    "gear": {"layer_types": ["conv_mixer", _SLIDING, "conv_mixer", _FULL]},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 16, **_TWO},
    "gemma3_text": {"query_pre_attn_scalar": 16, "sliding_window_pattern": 2, **_THREE},
    "gemma4_text": {
        "global_head_dim": 32, "num_kv_shared_layers": 2, "num_hidden_layers": 8, "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": _V, "num_key_value_heads": 1,
        "layer_types": [_SLIDING, _SLIDING, _FULL] * 2 + [_SLIDING, _FULL],
        "rope_parameters": {_FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1e6}, _SLIDING: {"rope_theta": 1e4}},
    },
    "glm": {},
    "glm4": {},
    "glm4_moe": {"rope_scaling": None},
    "glm4_moe_lite": {},
    "glm_moe_dsa": {"rope_parameters": _ROPE},
    "gpt2": {**_FULL_HEADS, "n_layer": 2},
    "gpt_bigcode": {"multi_query": True, "num_key_value_heads": 1},
    "gpt_neox": _FULL_HEADS,
    "gpt_oss": {
        "layer_types": [_SLIDING, _FULL] * 2,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
        },
    },
    "gptj": {"rotary_dim": 8},
    "granite": {},
    "granitemoe": {},
    "granitemoehybrid": {
        "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_proj_bias": False, "mamba_d_state": 32, "mamba_d_conv": 4,
        "mamba_n_groups": 1, "mamba_conv_bias": False, "layer_types": ["mamba", "attention"] * 2,
    },
    "helium": {},
    "hunyuan": {
        "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}, "use_cla": False, "cla_share_factor": 2,
        "use_mixed_mlp_moe": True,
    },
    "hunyuan_v1_dense": {},
    "internlm2": {},
    "internlm3": {},
    "iquestloopcoder": {},
    "jamba": {
        "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1, "expert_layer_period": 2,
        "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2,
    },
    "kimi_linear": {
        "linear_attn_config": _KIMI, "model_max_length": 4096, **_FULL_HEADS, "num_experts_per_token": 2,
    },
    "Klear": {},
    "laguna": {
        "layer_types": [_FULL] + [_SLIDING] * 3, "mlp_layer_types": ["dense"] + ["sparse"] * 3,
        "num_attention_heads_per_layer": [4] * 4,
        "rope_parameters": {
            _FULL: {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
            _SLIDING: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
        },
    },
    "lfm2": {
        "block_dim": _H, "block_ff_dim": 96, "block_multiple_of": 4, "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False, "layer_types": ["conv", _FULL] * 2,
    },
    "lfm2_moe": {"use_expert_bias": True, "num_dense_layers": 1, "layer_types": ["conv", _FULL] * 2},
    "lille-130m": {"block_size": 4096},
    "llama": _TWO,
    "llama4_text": {"no_rope_layers": [1, 1, 1, 0]},
    "longcat_flash": _LONGCAT,
    "longcat_flash_ngram": _LONGCAT,
    "mamba": {**_TWO, "state_size": 16, "conv_kernel": 4, "time_step_rank": 4, "intermediate_size": 128},
    "mamba2": {**_MAMBA2, **_TWO, "num_heads": 8, "head_dim": 16, "state_size": 32, "time_step_rank": "auto"},
    "mellum": {"layer_types": _THREE_TO_ONE, "rope_parameters": _ROPES},
    "mimo": _TWO,
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 1, 0], "moe_layer_freq": [0, 1, 1, 1], "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "swa_rope_theta": 1e4, "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2, "swa_head_dim": 16, "swa_v_head_dim": 16,
    },
    "minicpm": {"dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 1.0},
    "minicpm3": {
        "dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 1.0, **_FULL_HEADS,
        "rope_scaling": {**_LONG_ROPE, "original_max_position_embeddings": 4096},
    },
    "minimax": {"rotary_dim": 8},
    "ministral3": {"layer_types": _THREE_TO_ONE, "rope_parameters": _SCALED_ROPE},
    "mistral4": {"rope_parameters": _SCALED_ROPE, **_FULL_HEADS},
    "mixtral": {},
    "muse_glimmer": {"layer_types": _THREE_TO_ONE},
    "nanbeige": {"num_loops": 2},
    "nanochat": _FULL_HEADS,
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2, "no_op": False, "replace_with_linear": False}, "ffn": _FFN},
        ] * 3 + [{"attention": _NO_OP, "ffn": _FFN}],
    },
    "nemotron_h": {**_NEMOTRON_H, "hybrid_override_pattern": ["M", "*", "M", "-"]},
    "olmo2": {},
    "olmo3": {"layer_types": _THREE_TO_ONE},
    "olmo_hybrid": {
        "linear_allow_neg_eigval": True, "layer_types": ["linear_attention", _FULL] * 2, "linear_num_key_heads": 4,
        **_FULL_HEADS,
    },
    "olmoe": {},
    "openelm": {
        "ffn_dim_divisor": 16, "num_query_heads": [4] * 4, "num_kv_heads": [2] * 4, "ffn_multipliers": [1.0] * 4,
    },
    "phi": _FULL_HEADS,
    "phi3": {},
    "phimoe": {
        "rope_scaling": {
            "long_factor": [1.0] * 8, "short_factor": [1.0] * 8, "long_mscale": 1.2, "short_mscale": 1.2,
            "type": "longrope",
        },
    },
    "phixtral": {"rotary_dim": 8},
    "plamo": {"n_shared_head": 2},
    "plamo2": {"hidden_size_per_head": 16, "mamba_num_heads": 4, "mamba_d_state": 16, "full_attention_idx": [3]},
    "plamo3": {"sliding_window_pattern": 4, "sliding_window": None},
    "qwen": {"kv_channels": 16},
    "qwen2": {},
    "qwen2_moe": {},
    "qwen3": _TWO,
    "qwen3_moe": {},
    "qwen3_next": {"full_attention_interval": 2, **_THREE},
    "recurrent_gemma": {
        "conv1d_width": 4, "logits_soft_cap": 30.0, "block_types": ["recurrent", "recurrent", "attention"],
        "num_key_value_heads": 1,
    },
    "rwkv7": {
        "a_low_rank_dim": 16, "v_low_rank_dim": 16, "gate_low_rank_dim": 16, "decay_low_rank_dim": 16, "head_dim": 32,
        **_TWO,
    },
    "seed_oss": {},
    "smollm3": {},
    "solar_open": {},
    "spark2_5": {"hidden_act": "gelu", "layer_types": _THREE_TO_ONE, "rope_parameters": _ROPES},
    "stablelm": {"use_qkv_bias": True},
    "starcoder2": {},
    "step3p5": {
        "num_attention_groups": 2, "layer_types": [_FULL, _SLIDING, _SLIDING, _FULL], "moe_top_k": 2,
        "share_expert_dim": 32, "moe_layers_enum": "1,2,3",
        "attention_other_setting": {
            "attention_type": _SLIDING, "num_attention_heads": 4, "num_attention_groups": 2, "head_dim": 16,
        },
    },
    "talkie": {},
    "telechat3": {},
    "youtu_llm": _FULL_HEADS,
}  # fmt: skip

WRAPPED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gemma3": ("gemma3_text", {}),
    "gemma4": ("gemma4_text", {}),
    "kimi_k25": ("deepseek_v3", {}),
    "kimi_vl": ("deepseek_v3", {}),
    "lfm2-vl": ("lfm2", {}),
    "mistral3": ("ministral3", {}),
    "pixtral": ("llama", {}),
    "qwen2_vl": ("qwen2", {}),
    "qwen3_vl": ("qwen3", {}),
    "qwen3_vl_moe": ("qwen3_moe", {}),
    "qwen3_5": ("qwen3_next", {"model_type": "qwen3_5_text", "full_attention_interval": 2, "num_experts": 0}),
    "qwen3_5_moe": ("qwen3_next", {"model_type": "qwen3_5_moe_text", "full_attention_interval": 2}),
}
"""Model type to the text model whose configuration it nests, and what differs."""

_NESTED = {
    "vocab_size": _V, "hidden_size": _H, "num_hidden_layers": _L, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "head_dim": 16, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
}  # fmt: skip

WHOLE: Mapping[str, Mapping[str, Any]] = {
    "gemma3n": {
        "vocab_size": _V,
        "text_config": {
            **_NESTED, "model_type": "gemma3n", "num_hidden_layers": 4, "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": _V, "sliding_window": _W, "rope_local_base_freq": 1e4, "rope_theta": 1e6,
            "final_logit_softcapping": 30.0, "layer_types": [_SLIDING, _FULL] * 2,
            "activation_sparsity_pattern": [0.5] * 2 + [0.0] * 2, "hidden_size_per_layer_input": 16,
            "altup_num_inputs": 4, "altup_coef_clip": 120.0, "altup_correct_scale": True, "altup_active_idx": 0,
            "laurel_rank": 8,
        },
    },
    "kimi_k3": {
        "text_config": {
            **_NESTED, "model_type": "kimi_linear", **_FULL_HEADS,
            "linear_attn_config": {**_KIMI, "full_attn_layers": [2, 4]}, "kv_lora_rank": 16, "q_lora_rank": 16,
            "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "num_experts": 4,
            "num_experts_per_token": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
            "activation_situ_beta": 1.0, "attn_res_block_size": 2,
        },
    },
    "llama4": {
        "text_config": {
            **_NESTED, "model_type": "llama4", "attention_bias": False, "attention_chunk_size": _W,
            "interleave_moe_layer_step": 2, "intermediate_size_mlp": 96, "num_experts_per_tok": 1,
            "num_local_experts": 2, "rope_scaling": None, "rope_theta": 10000, "use_qk_norm": True,
        },
    },
    "minimax_m3_vl": {
        "text_config": {
            **_NESTED, "model_type": "minimax_m3", "intermediate_size": 32, "dense_intermediate_size": 96,
            "shared_intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
            "moe_layer_freq": [0, 1, 1, 1],
            "sparse_attention_config": {
                "sparse_num_index_heads": 2, "sparse_index_dim": 16, "sparse_block_size": 8,
                "sparse_topk_blocks": 6, "sparse_local_block": 1, "sparse_attention_freq": [0, 1, 1, 1],
            },
        },
    },
}  # fmt: skip
"""Complete configurations of families that nest one no other module shares."""

VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "deepseek_v3+yarn": ("deepseek_v3", {"rope_scaling": _YARN}),
    "llama+rope3": (
        "llama",
        {
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
    ),
    "llama+swa": ("llama", {"layer_types": _THREE_TO_ONE, "sliding_window": _W, "num_hidden_layers": 4}),
    "nemotron_h+moe": (
        "nemotron_h",
        {"hybrid_override_pattern": ["M", "E", "*", "E"], "moe_shared_expert_intermediate_size": 32},
    ),
    "phi3+longrope": (
        "phi3",
        {
            "original_max_position_embeddings": 64, "partial_rotary_factor": 1.0,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
        },
    ),
    "smollm3+swa": ("smollm3", {"layer_types": [_SLIDING, _FULL] * 2, "sliding_window": _W}),
}  # fmt: skip
"""A family in a form that changes its caches or its positions."""

NOT_BUILT: Mapping[str, str] = {
    "bitnet": "needs a Metal kernel",
    "muse_spark": "needs a Metal kernel",
    "olmo": "needs a package of its own",
    "phi3small": "has token ids of its vocabulary of 100,352 built in",
    "prism_hadamard_qwen35": "needs a packed manifest",
}
"""Model modules without a tiny configuration, and why."""
