"""Tiny random models that see, of every family whose images are computed, with mlx-vlm's own network of each."""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from numpy.typing import NDArray
from PIL import Image as PillowImage
from tokenizers import AddedToken, Tokenizer

from adapters.image_processors.processor import ImageProcessors
from adapters.mlx.engine import MlxEngine
from adapters.mlx.model import MlxModel
from adapters.mlx.vision.tower import _configured
from adapters.mlx.vlm.library import vlm_module
from adapters.pillow.decoder import decode
from application.ports.vision import ImageProcessor, PreparedImage
from domain.ids import ModelId
from domain.models.capability import GENERATES, Capability, ModelUse
from domain.models.model_card import LoadOptions, ModelSource
from domain.prefix.prompt_content import EncodedPrompt, MediaSpan
from domain.request.media import Image
from tests.support.arrays import prepared
from tests.support.engines.finish_load import finish_load
from tests.support.mlx import tiny_tokenizers

IMAGE, VIDEO, START, MARK = 190, 191, 192, 193
_TEXT = {
    **{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "vocab_size": 200},
    **{"rope_theta": 10000.0, "max_position_embeddings": 1024, "tie_word_embeddings": False},
}
_EYE = {
    **{"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64},
    **{"patch_size": 4, "image_size": 32, "num_channels": 3},
}
_PIXTRAL = {**_EYE, "model_type": "pixtral", "head_dim": 16, "rope_theta": 10000.0}
_LFM2 = {
    **{"model_type": "lfm2", "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 128},
    **{"num_attention_heads": 4, "num_heads": 4, "num_key_value_heads": 2, "vocab_size": 200, "conv_bias": False},
    **{"max_position_embeddings": 1024, "norm_eps": 1e-5, "conv_L_cache": 3, "block_dim": 64, "block_ff_dim": 128},
    **{"block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False, "conv_dim": 64},
    **{"rope_theta": 10000.0, "layer_types": ["conv", "full_attention"] * 2, "tie_word_embeddings": True},
}
_GRID_EYE = {
    **{"depth": 3, "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 64, "num_heads": 2, "patch_size": 4},
    **{"spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3},
}
_QWEN3_EYE = {**_GRID_EYE, "model_type": "qwen3_vl", "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
_GRID_IDS = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START}
_ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True}
_QWEN3_5 = {
    **{"model_type": "qwen3_5_text", "head_dim": 32, "num_hidden_layers": 4, "full_attention_interval": 2},
    **{"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {**_ROPE, "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [4, 2, 2]},
}

CONFIGS: dict[str, dict[str, Any]] = {
    "idefics3": {
        **{"text_config": _TEXT, "vision_config": {**_EYE, "model_type": "idefics3_vision"}},
        **{"scale_factor": 2, "image_token_id": IMAGE},
    },
    "pixtral": {"text_config": _TEXT, "vision_config": _PIXTRAL, "image_token_index": IMAGE},
    "mistral3": {
        **{"text_config": _TEXT, "vision_config": _PIXTRAL, "image_token_index": IMAGE, "spatial_merge_size": 2},
    },
    "llava": {
        **{"text_config": _TEXT, "vision_config": {**_EYE, "model_type": "siglip_vision_model"}},
        **{"image_token_index": IMAGE, "vision_feature_layer": -2, "vision_feature_select_strategy": "full"},
    },
    "lfm2_vl": {
        **{"text_config": _LFM2, "image_token_id": IMAGE, "downsample_factor": 2, "projector_hidden_size": 64},
        **{"encoder_patch_size": 4, "tile_size": 32, "max_image_tokens": 64, "min_image_tokens": 4},
        "vision_config": {**_EYE, "model_type": "lfm2_vl", "num_patches": 64},
    },
    "qwen2_5_vl": {
        **{name: value for name, value in _TEXT.items() if name not in ("model_type", "head_dim")},
        **{**_GRID_IDS, "rope_scaling": {"type": "mrope", "rope_type": "mrope", "mrope_section": [2, 3, 3]}},
        "vision_config": {**_GRID_EYE, "model_type": "qwen2_5_vl", "window_size": 16, "fullatt_block_indexes": [1]},
    },
    "qwen3_vl": {
        **{**_GRID_IDS, "vision_config": _QWEN3_EYE, "tie_word_embeddings": False},
        "text_config": {**_TEXT, "model_type": "qwen3_vl_text", "num_hidden_layers": 3, "rope_scaling": _ROPE},
    },
    "qwen3_5": {
        **{**_GRID_IDS, "tie_word_embeddings": False, "text_config": {**_TEXT, **_QWEN3_5}},
        "vision_config": {**_QWEN3_EYE, "model_type": "qwen3_5", "deepstack_visual_indexes": []},
    },
}
CONFIGS["smolvlm"] = CONFIGS["idefics3"]
_GEMMA = {
    **{name: value for name, value in _TEXT.items() if name not in ("rope_theta", "tie_word_embeddings")},
    **{"num_hidden_layers": 4, "sliding_window": 512, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16},
}
CONFIGS["gemma3"] = {
    **{"text_config": {**_GEMMA, "model_type": "gemma3_text"}, "mm_tokens_per_image": 16, "vocab_size": 200},
    **{"image_token_index": IMAGE, "hidden_size": 64, "pad_token_id": 0},
    "vision_config": {**_EYE, "model_type": "siglip_vision_model"},
}
_GEMMA4 = {
    **{**_GEMMA, "model_type": "gemma4_text", "global_head_dim": 16, "num_kv_shared_layers": 0},
    **{"vocab_size_per_layer_input": 200, "use_double_wide_mlp": False},
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
_GEMMA4_EYE = {**_EYE, "model_type": "gemma4_vision", "head_dim": 16, "global_head_dim": 16, "num_key_value_heads": 2}
CONFIGS["gemma4"] = {
    **{"image_token_id": IMAGE, "vocab_size": 200, "vision_config": {**_GEMMA4_EYE, "pooling_kernel_size": 2}},
    **{
        "text_config": {**_GEMMA4, "hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision"},
    },
}
CONFIGS["gemma4-e"] = {
    **CONFIGS["gemma4"],
    "text_config": {**_GEMMA4, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2},
}
"""Gemma 4 in two forms: images that attend to themselves, and causal ones with an input of their own a layer."""

_TILE_MARKERS = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
CONFIGS["qwen2_vl"] = {
    **CONFIGS["qwen2_5_vl"],
    "vision_config": {
        **{"model_type": "qwen2_vl", "depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2.0},
        **{"patch_size": 4, "in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2},
    },
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
for _name, _more in (
    ("qwen3_vl", {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}),
    ("qwen3_5", {"shared_expert_intermediate_size": 32}),
):
    _dense = CONFIGS[_name]
    _text = {**_dense["text_config"], **_EXPERTS, **_more}
    _eye = {**_dense["vision_config"], "model_type": f"{_name}_moe"}
    CONFIGS[f"{_name}_moe"] = {
        **{**_dense, "vision_config": _eye},
        "text_config": {**_text, "model_type": f"{_name}_moe_text"},
    }

_PROCESSORS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "idefics3": (
        "<image>",
        ["<fake_token_around_image>", "<global-img>", *_TILE_MARKERS],
        {
            **{"image_processor_type": "Idefics3ImageProcessor", **_HALF},
            **{"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 32}},
        },
    ),
    "lfm2_vl": (
        "<image>",
        ["<|image_start|>", "<|img_thumbnail|>", "<|image_end|>", *(f"<|img_{tile[1:-1]}|>" for tile in _TILE_MARKERS)],
        {
            **{"image_processor_type": "Lfm2VlImageProcessorFast", **_HALF, "encoder_patch_size": 4, "tile_size": 32},
            **{"min_image_tokens": 4, "max_image_tokens": 16},
        },
    ),
    "qwen3_vl": (
        "<|image_pad|>",
        [],
        {
            **{"image_processor_type": "Qwen2VLImageProcessorFast", **_HALF, "patch_size": 4, "merge_size": 2},
            **{"temporal_patch_size": 2, "size": {"shortest_edge": 256, "longest_edge": 8_192}},
        },
    ),
}
"""Of some families: the placeholder, other markers, and preprocessor_config.json."""


class Seen(NamedTuple):
    """An image as numpy's arrays."""

    arrays: dict[str, NDArray[Any]]
    num_features: int

    @property
    def prepared(self) -> PreparedImage:
        return prepared(self.arrays, self.num_features)


def image_of(name: str, seed: int = 0) -> tuple[Seen, MediaSpan]:
    """Random pixels as the family's tower takes them, and their span at 0."""
    random = np.random.default_rng(seed)
    digest, mask = bytes([seed]) * 32, np.ones

    def pixels(*shape: int) -> NDArray[Any]:
        return random.normal(size=shape).astype(np.float32)

    if name in ("idefics3", "smolvlm"):  # two tiles and the whole, with markers between
        seen = Seen({"pixel_values": pixels(1, 3, 3, 32, 32), "pixel_attention_mask": mask((1, 3, 32, 32), int)}, 48)
        return seen, MediaSpan(0, 54, digest, ((2, 18), (20, 36), (37, 53)))
    if name == "llava":
        return Seen({"pixel_values": pixels(1, 3, 32, 32)}, 64), MediaSpan(0, 64, digest)
    if name == "pixtral":
        seen = Seen({"pixel_values": pixels(1, 3, 24, 32), "image_sizes": np.array([[24, 32]])}, 48)
        return seen, MediaSpan(0, 54, digest, tuple((9 * row, 9 * row + 8) for row in range(6)))
    if name == "mistral3":
        seen = Seen({"pixel_values": pixels(1, 3, 24, 32), "image_sizes": np.array([[24, 32]])}, 12)
        return seen, MediaSpan(0, 15, digest, tuple((5 * row, 5 * row + 4) for row in range(3)))
    if name == "lfm2_vl":
        patches, is_patch = pixels(1, 64, 48), np.array([[1] * 48 + [0] * 16])
        arrays = {"pixel_values": patches, "pixel_attention_mask": is_patch, "spatial_shapes": np.array([[6, 8]])}
        return Seen(arrays, 12), MediaSpan(0, 14, digest, ((1, 13),))
    if name == "gemma3":
        return Seen({"pixel_values": pixels(1, 3, 32, 32)}, 16), MediaSpan(0, 20, digest, ((2, 18),))
    if name.startswith("gemma4"):
        at = np.stack(np.meshgrid(np.arange(8), np.arange(6), indexing="xy"), axis=-1).reshape(1, 48, 2)
        places = np.concatenate([at, np.full((1, 16, 2), -1)], axis=1)
        patches = np.where(places[..., :1] < 0, 0, pixels(1, 64, 48) / 4).astype(np.float32)
        return Seen({"pixel_values": patches, "image_position_ids": places}, 12), MediaSpan(0, 14, digest, ((1, 13),))
    rows, columns = (3, 4) if seed % 2 == 0 else (5, 2)
    grid = np.array([[1, 2 * rows, 2 * columns]])
    seen = Seen({"pixel_values": pixels(4 * rows * columns, 96), "image_grid_thw": grid}, rows * columns)
    return seen, MediaSpan(0, rows * columns, digest, (), (1, rows, columns))


def write_seeing_folder(
    name: str,
    folder: Path,
    *,
    text: Mapping[str, Any] = MappingProxyType({}),
    vision: Mapping[str, Any] = MappingProxyType({}),
    prepare: Mapping[str, Any] = MappingProxyType({}),
    template: str = tiny_tokenizers.CHATML,
) -> Path:
    """Writes a whole model folder: weights, a tokenizer with the markers of images, a template, and a processor, with
    these changes of the settings of text, tower and processor."""
    tokenizer = tiny_tokenizers.byte_level()
    placeholder, markers, processor = _PROCESSORS[name]
    tokenizer.add_special_tokens([AddedToken(marker, special=True) for marker in (placeholder, *markers)])
    tiny_tokenizers.write_folder(folder, tokenizer, template)
    (folder / "preprocessor_config.json").write_text(json.dumps({**processor, **prepare}), encoding="utf-8")
    id, eos = tokenizer.token_to_id(placeholder), tokenizer.token_to_id("<|im_end|>")
    ids = {"image_token_id": id, "image_token_index": id, "eos_token_id": eos}
    config = copy.deepcopy({**CONFIGS[name], **ids})
    for part, changes in (("text_config", text), ("vision_config", vision)):
        config[part] |= dict(changes)
    _write(folder, {**config, "model_type": name}, tokenizer.get_vocab_size())
    return folder


def write_seer(name: str, folder: Path) -> Any:
    """Writes weights and config.json in the names of mlx-vlm's conversions. Returns mlx-vlm's own network."""
    return _write(folder, {"model_type": name.partition("-")[0], **copy.deepcopy(CONFIGS[name])}, 200)


def _write(folder: Path, config: dict[str, Any], vocab_size: int) -> Any:
    (config.get("text_config") or config)["vocab_size"] = vocab_size
    family = vlm_module(f"models.{config['model_type']}")
    known = _configured(family, copy.deepcopy(config))
    mx.random.seed(0)
    network = family.Model(known)
    weights = [(key, _random(array)) for key, array in tree_flatten(network.parameters())]
    network.update(tree_unflatten(weights))
    network.eval()
    mx.eval(network.parameters())
    mx.save_safetensors(str(folder / "model.safetensors"), dict(weights), metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return network


def _random(array: mx.array) -> mx.array:
    """Random values where a new network has constants, which would hide errors."""
    if mx.any(array != array.flatten()[0]).item():
        return array.astype(mx.float32)
    return array.astype(mx.float32) + 0.1 * mx.random.normal(array.shape)


def logits_by_mlx_vlm(name: str, network: Any, tokens: list[int], seen: list[Seen]) -> mx.array:
    """The logits of a prompt's tokens by mlx-vlm, in one pass over all of it."""
    ids = mx.array([tokens])
    arrays = {
        key: mx.array(np.concatenate([image.arrays[key] for image in seen], axis=1 if name in _TILED else 0))
        for key in seen[0].arrays
    }
    if name == "llava":  # takes one image a prompt
        embedded = network.language_model.model.embed_tokens(ids)
        features = [
            network.get_input_embeddings(
                mx.full((1, image.num_features), IMAGE), **{key: mx.array(value) for key, value in image.arrays.items()}
            ).inputs_embeds[0]
            for image in seen
        ]
        embedded[:, mx.array(np.flatnonzero(np.array(tokens) == IMAGE))] = mx.concatenate(features)
        found = network.language_model(ids, inputs_embeds=embedded)
    elif name == "gemma3":  # mlx-vlm lets every token of a prompt with images attend to all others
        embedded = network.get_input_embeddings(ids, mask=mx.ones_like(ids), **arrays).inputs_embeds
        found = network.language_model(ids, inputs_embeds=embedded, mask=whole_mask(tokens))
    elif name == "gemma4":
        kinds = (ids == IMAGE).astype(mx.int32)
        found = network(ids, cache=network.make_cache(), mm_token_type_ids=kinds, **arrays)
    else:
        make = getattr(network.language_model, "make_cache", lambda: None)
        found = network(ids, mask=None, cache=make(), **arrays)
    logits: mx.array = found.logits[0]
    return logits


_TILED = ("idefics3", "smolvlm")


def whole_mask(tokens: list[int]) -> mx.array:
    """The mask of a prompt whose images attend to themselves, and are apart."""
    is_image = np.array(tokens) == IMAGE
    run = np.cumsum(np.diff(is_image, prepend=False) & is_image)
    same = is_image[:, None] & is_image[None] & (run[:, None] == run[None])
    return mx.array(np.tril(np.ones(same.shape, np.bool_)) | same)[None, None]


def load_seeing(
    name: str, folder: Path
) -> tuple[MlxModel, ImageProcessor, Callable[[Sequence[str | Image]], EncodedPrompt]]:
    """A whole tiny model, its image processor, and the encoder of its prompts."""
    source = ModelSource(ModelId(name), str(write_seeing_folder(name, folder)), use=ModelUse(SEES))
    loader = ImageProcessors(decode)
    model = finish_load(MlxEngine(sees=True).load(source, LoadOptions()))
    processor, tokenizer = loader.load(source), Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert isinstance(model, MlxModel)
    assert processor is not None

    def encode(parts: Sequence[str | Image]) -> EncodedPrompt:
        ids, media = list[int](), list[MediaSpan]()
        for part in parts:
            if isinstance(part, str):
                ids += tokenizer.encode(part, add_special_tokens=False).ids
                continue
            tokens = processor.process(part).tokens
            media.append(tokens.placed(len(ids), len(media) + 1))
            ids += tokens.token_ids
        return replace(EncodedPrompt.of_text(ids), media=tuple(media))

    return model, processor, encode


def picture(seed: int, width: int = 64, height: int = 48) -> bytes:
    """A PNG file of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    found = BytesIO()
    PillowImage.fromarray(pixels).save(found, "PNG")
    return found.getvalue()


SEES = GENERATES | {Capability.SEE}
