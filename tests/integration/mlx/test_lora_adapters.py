"""LoRA adapters on a tiny model: applied whole or not at all, with prefixes of their own."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from adapters.mlx.engine import MlxEngine
from adapters.mlx.loading.files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, check_source
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from application.ports.compute import LoadedModel
from domain.errors import ModelLoadFailed
from domain.ids import ModelId
from domain.models.model_card import LoadOptions, ModelSource
from domain.prefix.fingerprint import Fingerprint
from domain.prefix.prompt_content import BlockGrid
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.tiny_models import write_folder
from tests.support.stores.state_replay import continue_greedy, open_at, prompt_of

PROMPT = prompt_of(70)
RANK = 4


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder("qwen3", tmp_path_factory.mktemp("models") / "qwen3")


def write_adapter(base: Path, folder: Path, seed: int = 1, **config: Any) -> Path:
    """A random adapter over the attention of every layer, strong enough to change what is said."""
    folder.mkdir()
    network, _ = mlx_lm_module("utils").load_model(base)
    settings = {"rank": RANK, "scale": 20.0, "dropout": 0.5, "keys": ["self_attn.q_proj", "self_attn.v_proj"]}
    num_layers = len(network.layers)
    mlx_lm_module("tuner.utils").linear_to_lora_layers(network, num_layers, settings)
    mx.random.seed(seed)
    arrays: dict[str, mx.array] = {
        name: mx.random.normal(array.shape)
        for name, array in tree_flatten(network.parameters())
        if name.endswith(("lora_a", "lora_b"))
    }
    mx.save_safetensors(str(folder / ADAPTER_WEIGHTS), arrays)
    written = {"fine_tune_type": "lora", "num_layers": num_layers, "lora_parameters": settings, **config}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(written))
    return folder


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(base, tmp_path_factory.mktemp("adapters") / "one")


def source_of(base: Path, adapter: Path | None) -> ModelSource:
    return ModelSource(ModelId("tiny"), str(base), adapter="" if adapter is None else str(adapter))


def load(base: Path, adapter: Path | None) -> LoadedModel:
    return finish_load(MlxEngine().load(source_of(base, adapter), LoadOptions()))


def namespace(model: LoadedModel) -> bytes:
    return Fingerprint.of(model.description, BlockGrid(16, 32)).namespace()


def answer(model: LoadedModel) -> list[int]:
    return continue_greedy(model, open_at(model, PROMPT), PROMPT, 12)


def test_an_adapter_changes_answers_and_is_in_the_fingerprint(base: Path, adapter: Path, tmp_path: Path) -> None:
    plain, laid = load(base, None), load(base, adapter)
    other = load(base, write_adapter(base, tmp_path / "two", seed=2))
    again = load(base, adapter)
    assert answer(laid) == answer(again) != answer(plain)
    assert answer(other) != answer(laid)
    assert plain.description.weights_digest == laid.description.weights_digest
    assert len({namespace(model) for model in (plain, laid, other)}) == 3
    assert namespace(laid) == namespace(again)


def test_what_it_takes_is_reported_before_it_is_loaded(base: Path, adapter: Path) -> None:
    for path in (None, adapter):
        preview = check_source(source_of(base, path), LoadOptions())
        assert preview.weight_bytes == load(base, path).description.weight_bytes


LORA = "lora_parameters"
MODULES = ["self_attn.q_proj", "self_attn.v_proj", "self_attn.k_proj"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fine_tune_type": "full"}, "lora or dora"),
        ({"fine_tune_type": ["lora"]}, "lora or dora"),
        ({LORA: {"rank": None}}, "rank must be in"),
        ({LORA: {"rank": 10**9}}, "rank must be in"),
        ({LORA: {"rank": RANK + 1}}, "has the shape"),
        ({LORA: {"scale": "__import__('os')"}}, "scale must be a number"),
        ({LORA: {"scale": 10**400}}, "scale must be a number"),
        ({LORA: {"scale": float("inf")}}, "scale must be a number"),
        ({LORA: {"keys": MODULES}}, "incomplete"),
        ({LORA: {"keys": MODULES[:1]}}, "does not belong"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_adapter_that_does_not_fit_is_refused_whole(
    base: Path, adapter: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / ADAPTER_WEIGHTS).write_bytes((adapter / ADAPTER_WEIGHTS).read_bytes())
    config = json.loads((adapter / ADAPTER_CONFIG).read_text())
    config |= {LORA: config[LORA] | changes[LORA]} if LORA in changes else changes
    (broken / ADAPTER_CONFIG).write_text(json.dumps(config))
    with pytest.raises(ModelLoadFailed, match=words):
        load(base, broken)


def test_what_is_no_adapter_is_said_before_anything_is_unloaded(base: Path, adapter: Path, tmp_path: Path) -> None:
    cases: list[tuple[Path, str]] = [(tmp_path / "nowhere", "does not exist"), (base, "so it is not an adapter")]
    peft = tmp_path / "peft"
    peft.mkdir()
    (peft / ADAPTER_CONFIG).write_bytes((adapter / ADAPTER_CONFIG).read_bytes())
    (peft / "adapter_model.safetensors").write_bytes(b"x")
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / ADAPTER_CONFIG).write_bytes((adapter / ADAPTER_CONFIG).read_bytes())
    (cut / ADAPTER_WEIGHTS).write_bytes((adapter / ADAPTER_WEIGHTS).read_bytes()[:-5])
    for folder, words in [*cases, (peft, "another library's format"), (cut, "truncated")]:
        with pytest.raises(ModelLoadFailed, match=words):
            check_source(source_of(base, folder), LoadOptions())
