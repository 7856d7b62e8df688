"""LoRA adapters on a tiny model: applied whole or not at all, with prefixes of their own."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from adapters.mlx.engine import MlxEngine
from adapters.mlx.loading.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, PEFT_WEIGHTS
from adapters.mlx.loading.plan import check_source
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


def written_by_peft(folder: Path, adapter: Path, **changes: Any) -> Path:
    """The same adapter as PEFT writes it."""
    settings = json.loads((adapter / ADAPTER_CONFIG).read_text())["lora_parameters"]
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": settings["scale"] * RANK, "bias": "none", **changes}
    folder.mkdir()
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config))
    mx.save_safetensors(str(folder / PEFT_WEIGHTS), peft_arrays(adapter))
    return folder


def peft_arrays(adapter: Path) -> dict[str, mx.array]:
    found: Any = mx.load(str(adapter / ADAPTER_WEIGHTS))
    return {
        f"base_model.model.{name[:-7]}.lora_{name[-1].upper()}.weight": mx.contiguous(array.T)
        for name, array in found.items()
    }


@pytest.mark.parametrize("changes", [{}, {"use_rslora": True, "lora_alpha": 20.0 * RANK**0.5}])
def test_a_plain_adapter_of_peft_is_the_same_adapter(
    base: Path, adapter: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    peft = written_by_peft(tmp_path / "peft", adapter, **changes)
    assert answer(load(base, peft)) == answer(load(base, adapter))
    assert check_source(source_of(base, peft), LoadOptions()) == check_source(source_of(base, adapter), LoadOptions())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'"),
        ({"use_dora": True}, "it has use_dora"),
        ({"modules_to_save": ["lm_head"]}, "it has modules_to_save"),
        ({"rank_pattern": {"q_proj": 8}}, "it has rank_pattern"),
        ({"bias": "all"}, "it has bias"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"r": 0}, "r must be in"),
        ({"lora_alpha": None}, "lora_alpha must be a number"),
    ],
)
def test_an_adapter_of_peft_that_is_more_is_refused_by_what_it_has(
    base: Path, adapter: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelLoadFailed, match=words):
        check_source(source_of(base, written_by_peft(tmp_path / "peft", adapter, **changes)), LoadOptions())


def test_an_adapter_of_peft_for_other_layers_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    peft, arrays = written_by_peft(tmp_path / "peft", adapter), peft_arrays(adapter)
    for name in ("model.nowhere.q_proj", "model.norm"):
        wrong = {f"base_model.model.{name}.lora_{side}.weight": mx.zeros((RANK, RANK)) for side in "AB"}
        mx.save_safetensors(str(peft / PEFT_WEIGHTS), arrays | wrong)
        with pytest.raises(ModelLoadFailed, match="no linear layer"):
            load(base, peft)
    name = next(iter(arrays))
    mx.save_safetensors(str(peft / PEFT_WEIGHTS), {**arrays, name.replace(".weight", ".default.weight"): arrays[name]})
    with pytest.raises(ModelLoadFailed, match="twice"):
        load(base, peft)
    mx.save_safetensors(str(peft / PEFT_WEIGHTS), dict(list(arrays.items())[1:]))
    with pytest.raises(ModelLoadFailed, match="incomplete"):
        load(base, peft)


def test_an_adapter_of_all_layers(base: Path, adapter: Path, tmp_path: Path) -> None:
    whole = write_adapter(base, tmp_path / "whole", num_layers=-1)
    assert answer(load(base, whole)) == answer(load(base, adapter))


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
    for folder, words in [*cases, (peft, "peft_type is"), (cut, "truncated")]:
        with pytest.raises(ModelLoadFailed, match=words):
            check_source(source_of(base, folder), LoadOptions())
