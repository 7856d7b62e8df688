"""Tiny models whose files hold a multi-token-prediction head, in the names that publishers use.

A head that is `right` is the trunk's last layer with attention again, beside layers that add nothing: it expects what
the trunk will say, as long as its own state is that of the sequence. The first token is all that it does not see.
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from adapters.mlx.engine import MlxEngine
from adapters.mlx.loading.drafters import HEADS
from adapters.mlx.model import MlxModel
from adapters.mlx.speculation.drafting import family_of
from adapters.mlx.speculation.heads import text_model
from domain.ids import ModelId
from domain.models.model_card import LoadOptions, ModelSource
from tests.support.engines.finish_load import finish_load
from tests.support.mlx import tiny_tokenizers
from tests.support.mlx.tiny_models import build, config_of, names

PREFIXES = {"mtp.": ("qwen3_next", "qwen3_5", "qwen3_5_moe"), "model.mtp_layers.0.": ("mimo",)}
FAMILIES = sorted(set(HEADS) & set(names()))

_ADDING = ("o_proj.weight", "out_proj.weight", "down_proj.weight")


_NORMS = ("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight", "mtp.norm.weight")


def head_folder(
    name: str, folder: Path, *, is_right: bool = True, is_published: bool | None = None, seed: int = 0, **changes: Any
) -> Path:
    """A model folder in float32 with a head. `is_right` False: the head's weights are random. `is_published`: as Qwen
    publishes it, with separate experts and norms less one; otherwise as mlx-lm converts it."""
    if is_published is None:  # mlx-lm loads a head of Qwen3-Next in the published form only
        is_published = name == "qwen3_next"
    if name == "deepseek_v3":  # the number of its head's layer is a constant of mlx-lm
        changes["num_hidden_layers"] = 61
    tokenizer = tiny_tokenizers.byte_level()
    tiny_tokenizers.write_folder(folder, tokenizer)
    config = config_of(name, vocab_size=tokenizer.get_vocab_size(), **changes)
    network = build(name, mx.float32, seed, vocab_size=tokenizer.get_vocab_size(), **changes)
    if is_right:
        quieten(network)
    head = head_weights(network, is_right=is_right)
    config["eos_token_id"] = tokenizer.token_to_id("</s>")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    trunk = dict(tree_flatten(network.parameters()))
    if is_published:
        # The experts of a trunk of Qwen3.5 lie together, as in a converted one.
        trunk, head = _as_published(trunk, are_apart=name == "qwen3_next"), _as_published(head, are_apart=True)
    for file, weights in (("model.safetensors", trunk), ("model-head.safetensors", head)):
        mx.save_safetensors(str(folder / file), weights, metadata={"format": "mlx"})
    return folder


def load_head(folder: Path, options: LoadOptions | None = None) -> MlxModel:
    source = ModelSource(ModelId(folder.name), str(folder))
    model = finish_load(MlxEngine().load(source, options or LoadOptions()))
    assert isinstance(model, MlxModel)
    return model


def head_weights(network: Any, *, is_right: bool) -> dict[str, mx.array]:
    """The weights of a head by their names in a file, in the shapes that mlx-lm's conversion gives."""
    family, text = family_of(network), text_model(network)
    head, layers = HEADS[family], text.model.layers
    prefix = next((found for found, families in PREFIXES.items() if family in families), f"model.layers.{len(layers)}.")
    size = text.model.norm.weight.shape[0]
    layer = layers[_last_attention(text)].parameters()
    found = {f"{head.layer}{name}": weight for name, weight in tree_flatten(layer)}
    found |= {f"{name}.weight": mx.ones(size) for name in (head.embedding_norm, head.hidden_norm)}
    halves = [mx.eye(size), mx.zeros((size, size))]
    found[f"{head.projection}.weight"] = mx.concatenate(halves[:: -1 if head.is_hidden_first else 1], axis=1)
    found[f"{head.final_norm}.weight"] = text.model.norm.weight
    if not is_right:
        mx.random.seed(7)
        for name, weight in found.items():
            noise = mx.random.normal(weight.shape) / max(weight.shape[-1], 1) ** 0.5
            found[name] = noise if weight.ndim > 1 else 1 + 0.1 * noise
    return {prefix + name: weight for name, weight in found.items()}


def _as_published(weights: dict[str, mx.array], *, are_apart: bool) -> dict[str, mx.array]:
    """`are_apart`: each expert has tensors of its own."""
    found: dict[str, mx.array] = {}
    for name, weight in weights.items():
        name = name.replace("language_model.model.", "model.language_model.")
        before, switched, after = name.partition(".mlp.switch_mlp.")
        if switched and are_apart:
            found |= {f"{before}.mlp.experts.{expert}.{after}": one for expert, one in enumerate(weight)}
        elif name.endswith("conv1d.weight"):
            found[name] = weight.moveaxis(2, 1)
        else:
            is_shifted = name.endswith(_NORMS) or ".pre_fc_norm_" in name
            found[name] = weight - 1.0 if is_shifted else weight
    return found


def quieten(network: Any) -> None:
    """Leaves one layer that adds to the residual stream, and gives each embedding a mean square of one."""
    text = text_model(network)
    weights = dict(tree_flatten(text.model.parameters()))
    for name, weight in weights.items():
        if name.endswith(_ADDING) and not name.startswith(f"layers.{_last_attention(text)}."):
            weights[name] = mx.zeros_like(weight)
    embeddings = weights["embed_tokens.weight"]
    weights["embed_tokens.weight"] = embeddings / mx.sqrt(mx.mean(mx.square(embeddings), axis=-1, keepdims=True))
    text.model.update(tree_unflatten(list(weights.items())))


def _last_attention(text: Any) -> int:
    return max(index for index, layer in enumerate(text.model.layers) if "self_attn" in layer)
