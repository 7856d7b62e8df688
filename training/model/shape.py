"""The sizes of a model, and the config.json that says the same to transformers and mlx-lm."""

from dataclasses import dataclass

NORM_EPSILON = 1e-6
CONVOLUTION_WIDTH = 4
CONTEXT_LENGTH = 8192
_ROPE_BASE = 100_000.0
_FULL_ATTENTION_INTERVAL = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """`is_hybrid`: every fourth layer attends, the others keep a gated delta state; otherwise every layer attends."""

    vocab_size: int
    is_hybrid: bool = False
    hidden: int = 384
    num_layers: int = 8
    intermediate: int = 768
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64

    @property
    def rotary_dim(self) -> int:
        """Leading dimensions of a head that carry the position."""
        return self.head_dim // 4 if self.is_hybrid else self.head_dim

    @property
    def rope_base(self) -> float:
        return _ROPE_BASE

    @property
    def state_width(self) -> int:
        """Width of the gated delta layers' keys, and of their values."""
        return self.num_heads * self.head_dim

    @property
    def convolution_channels(self) -> int:
        """Queries, keys and values side by side."""
        return 3 * self.state_width

    def attends(self, layer: int) -> bool:
        """Whether a layer is one of full attention."""
        return not self.is_hybrid or (layer + 1) % _FULL_ATTENTION_INTERVAL == 0

    def config(self, eos_token_id: int, bos_token_id: int) -> dict[str, object]:
        """config.json, exported in bfloat16."""
        common = {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.num_layers,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "rms_norm_eps": NORM_EPSILON,
            "tie_word_embeddings": True,
            "max_position_embeddings": CONTEXT_LENGTH,
            "attention_bias": False,
            "hidden_act": "silu",
            "bos_token_id": bos_token_id,
            "eos_token_id": eos_token_id,
            "initializer_range": 0.02,
            "use_cache": True,
        }
        if not self.is_hybrid:
            return common | {
                "architectures": ["Qwen3ForCausalLM"],
                "model_type": "qwen3",
                "rope_theta": self.rope_base,
                "torch_dtype": "bfloat16",
            }
        return {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": common | self._hybrid_config(),
            "tie_word_embeddings": True,
            "eos_token_id": eos_token_id,
            "torch_dtype": "bfloat16",
        }

    def _hybrid_config(self) -> dict[str, object]:
        layers = range(self.num_layers)
        third = self.rotary_dim // 6
        return {
            "model_type": "qwen3_5_text",
            "linear_num_value_heads": self.num_heads,
            "linear_num_key_heads": self.num_heads,
            "linear_key_head_dim": self.head_dim,
            "linear_value_head_dim": self.head_dim,
            "linear_conv_kernel_dim": CONVOLUTION_WIDTH,
            "full_attention_interval": _FULL_ATTENTION_INTERVAL,
            "layer_types": ["full_attention" if self.attends(layer) else "linear_attention" for layer in layers],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_base,
                "partial_rotary_factor": 0.25,
                "mrope_section": [self.rotary_dim // 2 - 2 * third, third, third],
            },
        }


__all__ = ("CONTEXT_LENGTH", "CONVOLUTION_WIDTH", "NORM_EPSILON", "Shape")
