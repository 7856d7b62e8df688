"""A model folder is data: the Python file that its config.json names is never run, whatever mlx-lm would do with it."""

import json
from pathlib import Path

import pytest

from adapters.huggingface.repository import HuggingFaceRepository
from adapters.mlx.engine import MlxEngine
from adapters.mlx.loading import network as loader
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from domain.errors import ModelLoadFailed
from domain.ids import ModelId
from domain.models.model_card import LoadOptions, ModelSource
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.tiny_models import write_folder


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A model that works, and that leaves a file behind when its code is run."""
    folder = write_folder("llama", tmp_path / "models" / "hostile")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_file": "own.py"}))
    (folder / "own.py").write_text(
        f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\nfrom mlx_lm.models.llama import *\n"
    )
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize("name", ["own.py", "../own.py", 7, ""])
def test_code_of_a_models_own_is_refused_before_anything_is_read(tmp_path: Path, name: object) -> None:
    """The weights are missing too: what is said shows that nobody got as far as looking for them."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "model_file": name}))
    with pytest.raises(ModelLoadFailed, match="model_file"):
        finish_load(MlxEngine().load(ModelSource(ModelId("m"), str(tmp_path)), LoadOptions()))


def test_a_model_with_code_of_its_own_is_not_served(hostile: Path) -> None:
    repository = HuggingFaceRepository([str(hostile.parent)], cache=hostile.parent / "none")
    assert repository.find(ModelId("hostile")) is None
    assert "hostile" not in [source.id for source in repository.list()]
    with pytest.raises(ModelLoadFailed, match="model_file"):
        repository.fetch(ModelId("hostile"), lambda _progress: None)
    with pytest.raises(ModelLoadFailed, match="model_file"):
        finish_load(MlxEngine().load(ModelSource(ModelId("m"), str(hostile)), LoadOptions()))
    assert not (hostile / "ran").exists()


def test_a_file_that_changes_after_it_was_looked_at_is_not_run_either(hostile: Path) -> None:
    network, config = mlx_lm_module("utils").load_model(hostile, lazy=True, model_config=loader.NO_OWN_CODE)
    assert type(network).__module__ == "mlx_lm.models.llama"
    assert config["model_file"] is None
    assert not (hostile / "ran").exists()


def test_a_config_without_end_is_a_failure_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type":' + "[" * 200_000)
    with pytest.raises(ModelLoadFailed, match="cannot be read"):
        finish_load(MlxEngine().load(ModelSource(ModelId("m"), str(tmp_path)), LoadOptions()))
