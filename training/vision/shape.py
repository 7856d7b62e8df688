"""The sizes of the vision model, its config.json, and its fresh parameters by the names of the exported file."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from training.model.parameters import Parameters
from training.vision.conversation import NUM_IMAGE_TOKENS
from training.vision.render import SIDE

CONTEXT_LENGTH = 2048
NORM_EPSILON = 1e-6
ROPE_BASE = 100_000.0
TRUNK, TOWER = "model.text_model.", "model.vision_model."
EMBEDDING = TRUNK + "embed_tokens.weight"
CONNECTOR = "model.connector.modality_projection.proj.weight"
_STD = 0.02


@dataclass(frozen=True, slots=True)
class SeeingShape:
    """A SigLIP tower whose patches, `merge` x `merge` of them a token, a Llama reads: Idefics3."""

    vocab_size: int
    hidden: int = 256
    num_layers: int = 5
    intermediate: int = 384
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    tower_hidden: int = 160
    tower_layers: int = 5
    tower_intermediate: int = 480
    tower_heads: int = 5
    patch: int = 12
    merge: int = 2

    @property
    def patches_a_side(self) -> int:
        return SIDE // self.patch

    def config(self, image_id: int, eos_token_id: int, pad_token_id: int) -> dict[str, object]:
        """config.json, exported in bfloat16."""
        assert (self.patches_a_side // self.merge) ** 2 == NUM_IMAGE_TOKENS
        return {
            "architectures": ["Idefics3ForConditionalGeneration"],
            "model_type": "idefics3",
            "image_token_id": image_id,
            "scale_factor": self.merge,
            "tie_word_embeddings": True,
            "pad_token_id": pad_token_id,
            "eos_token_id": eos_token_id,
            "vocab_size": self.vocab_size,
            "torch_dtype": "bfloat16",
            "text_config": {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "vocab_size": self.vocab_size,
                "hidden_size": self.hidden,
                "num_hidden_layers": self.num_layers,
                "intermediate_size": self.intermediate,
                "num_attention_heads": self.num_heads,
                "num_key_value_heads": self.num_kv_heads,
                "head_dim": self.head_dim,
                "hidden_act": "silu",
                "max_position_embeddings": CONTEXT_LENGTH,
                "rms_norm_eps": NORM_EPSILON,
                "rope_theta": ROPE_BASE,
                "attention_bias": False,
                "mlp_bias": False,
                "tie_word_embeddings": True,
                "bos_token_id": pad_token_id,
                "eos_token_id": eos_token_id,
                "torch_dtype": "bfloat16",
            },
            "vision_config": {
                "model_type": "idefics3_vision",
                "hidden_size": self.tower_hidden,
                "num_hidden_layers": self.tower_layers,
                "intermediate_size": self.tower_intermediate,
                "num_attention_heads": self.tower_heads,
                "num_channels": 3,
                "image_size": SIDE,
                "patch_size": self.patch,
                "hidden_act": "gelu_pytorch_tanh",
                "layer_norm_eps": NORM_EPSILON,
            },
        }


def trunk_layer(layer: int) -> list[str]:
    """The names of a layer's weights, in the order that `Parts.trunk_layer` takes them."""
    prefix = f"{TRUNK}layers.{layer}."
    names = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    names += ("post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    return [f"{prefix}{name}.weight" for name in names]


def tower_layer(layer: int) -> list[str]:
    """Likewise, weights and biases, as `Parts.tower_layer` takes them."""
    prefix = f"{TOWER}encoder.layers.{layer}."
    names = ("layer_norm1", *(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")))
    names += ("layer_norm2", "mlp.fc1", "mlp.fc2")
    return [f"{prefix}{name}.{part}" for name in names for part in ("weight", "bias")]


def new_parameters(shape: SeeingShape, device: str) -> Parameters:
    """Float32, drawn from torch's global generator. Projections into a residual stream start smaller."""
    width, kv_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    trunk_out, tower_out = (_STD / math.sqrt(2 * count) for count in (shape.num_layers, shape.tower_layers))
    hidden, inner, seen, seen_inner = shape.hidden, shape.intermediate, shape.tower_hidden, shape.tower_intermediate
    made: Parameters = {}

    def random(name: str, *size: int, std: float = _STD) -> None:
        made[name] = nn.Parameter((torch.randn(size) * std).to(device))

    def constant(name: str, size: int, value: float) -> None:
        made[name] = nn.Parameter(torch.full((size,), value).to(device))

    random(EMBEDDING, shape.vocab_size, hidden)
    for layer in range(shape.num_layers):
        norm1, query, key, value, out, norm2, gate, up, down = trunk_layer(layer)
        constant(norm1, hidden, 1.0)
        constant(norm2, hidden, 1.0)
        random(query, width, hidden)
        random(key, kv_width, hidden)
        random(value, kv_width, hidden)
        random(out, hidden, width, std=trunk_out)
        random(gate, inner, hidden)
        random(up, inner, hidden)
        random(down, hidden, inner, std=trunk_out)
    constant(TRUNK + "norm.weight", hidden, 1.0)
    random(TOWER + "embeddings.patch_embedding.weight", seen, 3, shape.patch, shape.patch)
    constant(TOWER + "embeddings.patch_embedding.bias", seen, 0.0)
    random(TOWER + "embeddings.position_embedding.weight", shape.patches_a_side**2, seen)
    sizes = {"_proj": (seen, seen), "fc1": (seen_inner, seen), "fc2": (seen, seen_inner)}
    for layer in range(shape.tower_layers):
        for name in tower_layer(layer):
            size = next((size for part, size in sizes.items() if part in name), (seen,))
            if name.endswith("bias"):
                constant(name, size[0], 0.0)
            elif len(size) == 1:
                constant(name, seen, 1.0)
            else:
                random(name, *size, std=tower_out if "out_proj" in name or "fc2" in name else _STD)
    constant(TOWER + "post_layernorm.weight", seen, 1.0)
    constant(TOWER + "post_layernorm.bias", seen, 0.0)
    random(CONNECTOR, hidden, seen * shape.merge**2)
    return made


__all__ = (
    "CONNECTOR",
    "CONTEXT_LENGTH",
    "EMBEDDING",
    "NORM_EPSILON",
    "ROPE_BASE",
    "TOWER",
    "TRUNK",
    "SeeingShape",
    "new_parameters",
    "tower_layer",
    "trunk_layer",
)
