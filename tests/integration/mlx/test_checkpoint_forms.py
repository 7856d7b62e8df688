"""Checkpoints in the forms that are found on hubs load as the plain ones do, in every family."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from adapters.huggingface.repository import HuggingFaceRepository
from adapters.mlx.loading.network import load_folder, open_network
from adapters.mlx.loading.plan import check_source
from adapters.mlx.loading.weights_digest import Digests
from domain.errors import ModelLoadFailed
from domain.ids import ModelId
from domain.models.model_card import LoadOptions
from tests.support.effort import EFFORT
from tests.support.engines.finish_load import finish_load
from tests.support.mlx import checkpoint_forms as forms
from tests.support.mlx.tiny_configs import WRAPPED
from tests.support.mlx.tiny_models import config_of, names, write_folder

Form = Callable[[Path], None]
EVERY = 1 if EFFORT > 1 else 16
"""Each family is loaded in one form; all forms are seen in the first families."""


def parameters(folder: Path) -> dict[str, mx.array]:
    network, _ = open_network(folder)
    mx.eval(network.parameters())
    return dict(tree_flatten(network.parameters()))


@pytest.mark.parametrize(("at", "name"), list(enumerate(names()))[::EVERY])
def test_a_family_loads_in_the_forms_that_apply(tmp_path: Path, at: int, name: str) -> None:
    folder = write_folder(name, tmp_path / name)
    expected = parameters(folder)
    applied = [one for one in forms.FORMS if one is not forms.with_output_matrix]
    form = applied[at // EVERY % len(applied)]
    form(folder)
    found = parameters(folder)
    assert found.keys() == expected.keys()
    assert all(mx.array_equal(found[key], expected[key], equal_nan=True).item() for key in found)


@pytest.mark.parametrize("form", forms.FORMS)
def test_every_form_is_listed_checked_and_loaded(tmp_path: Path, form: Form) -> None:
    folder = write_folder("qwen3", tmp_path / "models" / "A model (4-bit) [new]")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    weights = {name: array for name, array in forms.stored(folder).items() if "lm_head." not in name}
    mx.save_safetensors(str(folder / forms.ONE), weights)
    expected = parameters(folder)
    form(folder)
    repository = HuggingFaceRepository([str(tmp_path / "models")], cache=tmp_path / "hub")
    source = repository.find(ModelId("A model (4-bit) [new]"))
    assert source is not None
    assert source in repository.list()
    assert check_source(source, LoadOptions()).weight_bytes > 0
    found = parameters(folder)
    assert found.keys() == expected.keys()
    assert all(mx.array_equal(found[key], expected[key]).item() for key in found)


def test_one_tensor_with_two_shapes_is_refused(tmp_path: Path) -> None:
    folder = write_folder("qwen3", tmp_path / "models" / "twice")
    name = next(iter(forms.stored(folder)))
    mx.save_safetensors(str(folder / "model-other.safetensors"), {name: mx.zeros((2, 2))})
    source = HuggingFaceRepository([str(tmp_path / "models")], cache=tmp_path / "hub").find(ModelId("twice"))
    assert source is not None
    with pytest.raises(ModelLoadFailed, match="in two of its weight files with different shapes"):
        check_source(source, LoadOptions())


BASES = {"rope_theta": 3e5, "rope_local_base_freq": 1e3}
"""Other ones than the defaults of networks."""

OWN_WAYS = {"kimi_linear", "recurrent_gemma", "plamo2vl", "qwen3_5", "qwen3_5_moe", "phi4_siglip", "fastvlm"}
"""The first three have no base to set, the next two read the newer name only, phi4_siglip takes no other names than its
own, and fastvlm needs its tower."""


def logits(folder: Path) -> mx.array:
    found = open_network(folder)[0](mx.array([list(range(3, 40))]))
    return cast("mx.array", getattr(found, "logits", found))


def has_older_names(name: str) -> bool:
    text = config_of(name).get("text_config", config_of(name))
    return "rope_theta" in text and "rope_parameters" not in text and name not in OWN_WAYS


@pytest.mark.parametrize("name", ["llama", "llama+rope3", "gemma3", *list(filter(has_older_names, names()))[::EVERY]])
def test_positions_are_those_of_the_file_however_it_names_them(tmp_path: Path, name: str) -> None:
    folder = write_folder(name, tmp_path / name)
    config = json.loads((folder / "config.json").read_text())
    level = config.get("text_config", config)
    by_default = logits(folder)
    level |= {key: value for key, value in BASES.items() if key in level}
    (folder / "config.json").write_text(json.dumps(config))
    expected = logits(folder)
    assert not mx.array_equal(expected, by_default).item()
    forms.with_rope_parameters(folder)
    assert mx.array_equal(logits(folder), expected).item()


def test_state_that_was_computed_without_those_names_is_not_reused(tmp_path: Path) -> None:
    folder, digests = write_folder("llama", tmp_path / "llama"), Digests(b"weights")
    _, before = finish_load(load_folder(folder, LoadOptions(), digests))
    forms.with_rope_parameters(folder)
    _, after = finish_load(load_folder(folder, LoadOptions(), digests))
    assert before.digest == digests.weights
    assert after.digest != digests.weights


WITH_IMAGES = ["gemma3", "llama4", "pixtral", "qwen3_5"]


@pytest.mark.parametrize("name", sorted(WRAPPED.keys() & set(names())) if EFFORT > 1 else WITH_IMAGES)
@pytest.mark.parametrize(
    "prefixes", [("model.language_model", "lm_head"), ("model", "lm_head"), ("language_model.model", "lm_head")]
)
def test_the_text_of_a_model_with_images_is_found_by_its_other_names(
    tmp_path: Path, name: str, prefixes: tuple[str, str]
) -> None:
    folder = write_folder(name, tmp_path / name)
    expected = parameters(folder)
    forms.with_names(folder, *prefixes)
    found = parameters(folder)
    assert found.keys() == expected.keys()
    assert all(mx.array_equal(found[key], expected[key], equal_nan=True).item() for key in found)


def test_values_of_eight_bits_are_not_taken_for_whole_numbers(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "llama")
    forms.with_eight_bits(folder)
    with pytest.raises(ModelLoadFailed, match=r"q_proj.weight has 8-bit values without scales"):
        finish_load(load_folder(folder, LoadOptions(), Digests(b"")))


def test_an_error_names_the_quantisation_and_few_of_many_weights(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    scales = {f"model.layers.{at}.mlp.weight_scale_inv": mx.ones((1,)) for at in range(400)}
    mx.save_safetensors(str(folder / forms.ONE), {**forms.stored(folder), **scales})
    with pytest.raises(ModelLoadFailed, match="and 397 more; its weights are quantised as fp8") as refused:
        finish_load(load_folder(folder, LoadOptions(), Digests(b"")))
    assert len(refused.value.message) < 1000
