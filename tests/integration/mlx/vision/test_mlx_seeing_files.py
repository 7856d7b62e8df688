"""The files of models that see, in every form that publishers use: the same network, or a refusal with the reason."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from adapters.image_processors.layouts import LAYOUTS
from adapters.mlx.caches.leaves import new_caches
from adapters.mlx.loading.network import load_folder
from adapters.mlx.loading.plan import plan_model
from adapters.mlx.loading.vision import load_vision
from adapters.mlx.loading.weights_digest import Digests
from adapters.mlx.speculation.drafting import forward
from adapters.mlx.vision.tower import VisionEncoder, build_tower
from domain.errors import ModelLoadFailed
from domain.ids import ModelId
from domain.models.capability import PLAIN_USE, ModelUse
from domain.models.model_card import LoadOptions, ModelSource
from domain.models.model_files import SEEING
from domain.request.media import Image
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.vision.tiny_seers import (
    CONFIGS,
    SEES,
    image_of,
    load_seeing,
    picture,
    write_seeing_folder,
    write_seer,
)

pytest.importorskip("mlx_vlm")

Weights = dict[str, mx.array]


def opened(folder: Path) -> tuple[Any, Any]:
    network, facts = finish_load(load_folder(folder, LoadOptions(dtype="float32"), Digests(b"seer")))
    return network, finish_load(load_vision(folder, facts.config, network, "float32"))


def outputs(folder: Path, name: str) -> tuple[mx.array, mx.array]:
    """The features of an image and the logits of a text."""
    network, vision = opened(folder)
    logits = forward(network, mx.array([[3, 4, 5, 6]]), new_caches(network))
    return vision.encode(image_of(name)[0].prepared).embeddings, logits


def rewrite(folder: Path, change: Callable[[str, mx.array], tuple[str, mx.array] | None]) -> None:
    path = folder / "model.safetensors"
    weights = dict(mx.load(str(path)))
    changed = (change(name, array) for name, array in weights.items())
    mx.save_safetensors(str(path), {one[0]: mx.contiguous(one[1]) for one in changed if one is not None})


def as_published(name: str, array: mx.array) -> tuple[str, mx.array]:
    """By the names and the order of axes of transformers, from those of mlx-vlm."""
    if array.ndim == 4:
        array = array.transpose(0, 3, 1, 2)
    if array.ndim == 5:
        array = array.transpose(0, 4, 1, 2, 3)
    if name.startswith("language_model.lm_head."):
        return name.removeprefix("language_model."), array
    if name.startswith("language_model.model."):
        return name.replace("language_model.model.", "model.language_model."), array
    name = name.replace("vision_tower.", "visual.").replace("language_model.", "text_model.")
    return f"model.{name}", array


@pytest.mark.parametrize("name", ["idefics3", "qwen3_vl"])
def test_a_published_model_is_its_conversion(name: str, tmp_path: Path) -> None:
    write_seer(name, tmp_path)
    expected = outputs(tmp_path, name)

    rewrite(tmp_path, as_published)

    assert all(mx.array_equal(*pair) for pair in zip(outputs(tmp_path, name), expected, strict=True))


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def test_tied_weights_need_no_output_matrix(tmp_path: Path) -> None:
    write_seer("idefics3", tmp_path)
    rewrite(tmp_path, lambda name, array: None if "lm_head" in name else (name, array))
    edited(tmp_path, lambda config: config.update(tie_word_embeddings=True))
    edited(tmp_path, lambda config: config["text_config"].update(tie_word_embeddings=True))

    network, _ = opened(tmp_path)

    hidden = network.language_model.model(mx.array([[3, 4]]))
    logits = forward(network, mx.array([[3, 4]]), new_caches(network))
    assert mx.allclose(logits, hidden @ network.language_model.model.embed_tokens.weight.T, atol=1e-5)


@pytest.mark.parametrize("sees_quantised", [True, False])
def test_a_quantised_model_is_loaded_as_it_was_quantised(tmp_path: Path, sees_quantised: bool) -> None:
    peer = write_seer("qwen3_vl", tmp_path)
    nn.quantize(
        peer,
        group_size=32,
        bits=8,
        class_predicate=lambda path, layer: (
            hasattr(layer, "to_quantized")
            and layer.weight.shape[-1] % 32 == 0
            and (sees_quantised or path.startswith("language_model"))
        ),
    )
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(peer.parameters())))
    edited(tmp_path, lambda config: config.update(quantization={"group_size": 32, "bits": 8}))

    _, vision = opened(tmp_path)

    seen, _ = image_of("qwen3_vl")
    grid = mx.array(seen.arrays["image_grid_thw"])
    expected, _ = peer.vision_tower(mx.array(seen.arrays["pixel_values"]), grid)
    assert mx.allclose(vision.encode(seen.prepared).embeddings, expected, atol=1e-5)
    is_quantised = any(hasattr(layer, "bits") for _, layer in vision.module.named_modules())
    assert is_quantised is sees_quantised


def test_features_are_of_the_trunks_type_whatever_the_towers_is(tmp_path: Path) -> None:
    write_seer("qwen3_vl", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    weights = dict(mx.load(str(tmp_path / "model.safetensors")))
    vision = VisionEncoder(*build_tower(config, weights, mx.bfloat16), config)

    features = vision.encode(image_of("qwen3_vl")[0].prepared)

    assert {array.dtype for array in (features.embeddings, *features.deep)} == {mx.bfloat16}
    assert len(features.deep) == 2


QWEN3 = {"model_type": "qwen3", "head_dim": 16}


@pytest.mark.parametrize("name", ["idefics3", "llava"])
def test_the_text_may_be_of_any_type_that_mlx_lm_has(name: str, tmp_path: Path) -> None:
    write_seer(name, tmp_path)
    norms = {f"language_model.model.layers.{layer}.self_attn.{which}_norm.weight" for layer in (0, 1) for which in "qk"}
    path = tmp_path / "model.safetensors"
    weights = dict(mx.load(str(path))) | {norm: mx.full(16, 2.0) for norm in norms}
    mx.save_safetensors(str(path), weights)
    edited(tmp_path, lambda config: config["text_config"].update(QWEN3))

    network, _ = opened(tmp_path)

    assert type(network.language_model).__module__ == "mlx_lm.models.qwen3"
    assert mx.all(network.language_model.model.layers[1].self_attn.k_norm.weight == 2.0).item()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda name, array: None if "post_layernorm" in name else (name, array), "post_layernorm.weight is missing"),
        (lambda name, array: (name, array[..., :1] if "connector" in name else array), "images cannot be computed"),
    ],
)
def test_a_tower_that_is_not_whole_is_refused(
    tmp_path: Path, change: Callable[[str, mx.array], tuple[str, mx.array] | None], reason: str
) -> None:
    write_seer("idefics3", tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(ModelLoadFailed, match=reason):
        opened(tmp_path)


def test_the_plan_counts_the_tower_and_the_largest_pass_corrects_it(tmp_path: Path) -> None:
    folder = write_seeing_folder("qwen3_vl", tmp_path / "planned")
    source = ModelSource(ModelId("m"), str(folder), use=ModelUse(SEES))

    planned = plan_model(source, LoadOptions()).memory
    blind = plan_model(replace(source, use=PLAIN_USE), LoadOptions()).memory
    model, processor, _ = load_seeing("qwen3_vl", tmp_path / "loaded")

    assert planned.weight_bytes == model.description.memory.weight_bytes > blind.weight_bytes
    assert planned.image == model.description.memory.image
    assert blind.tower_bytes(100, 0) == 0 < planned.tower_bytes(100, 0)
    features = model.encode_image(processor.process(Image(picture(1, 64, 48))).prepared)
    assert features.size_bytes == 48 * planned.image.feature_bytes
    assert model.description.memory.image.tower != planned.image.tower


@pytest.mark.parametrize(("size", "num_views"), [((64, 48), 7), ((20, 20), 1)])
def test_views_of_an_image_have_as_many_features_as_tokens(
    size: tuple[int, int], num_views: int, tmp_path: Path
) -> None:
    model, processor, _ = load_seeing("lfm2_vl", tmp_path)
    tokens, prepared = processor.process(Image(picture(1, *size)))
    features, embedded = model.encode_image(prepared), tokens.embedded
    assert len(embedded) == num_views
    assert features.embeddings.shape[0] == sum(end - start for start, end in embedded)


def test_every_family_is_found_by_its_files() -> None:
    assert set(LAYOUTS) == SEEING
    assert {name.partition("-")[0] for name in CONFIGS} | {"qwen2_vl", "qwen3_vl_moe", "qwen3_5_moe"} >= SEEING
