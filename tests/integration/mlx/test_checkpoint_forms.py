"""Checkpoints in the forms that are found on hubs load as the plain ones do, in every family."""

import json
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from adapters.huggingface.repository import HuggingFaceRepository
from adapters.mlx.loading.network import open_network
from adapters.mlx.loading.plan import check_source
from domain.errors import ModelLoadFailed
from domain.ids import ModelId
from domain.models.model_card import LoadOptions
from tests.support.effort import EFFORT
from tests.support.mlx import checkpoint_forms as forms
from tests.support.mlx.tiny_models import names, write_folder

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
