"""A quantised copy is what mlx-lm's converter writes, and keeps what that one drops."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx.loading.files import read_config
from adapters.mlx.loading.network import open_network
from adapters.mlx.loading.vision import open_vision
from adapters.mlx.quantising.beside import HEADS, TOWER
from adapters.mlx.runtime.arrays import parameters
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from application.ports.quantiser import RECEIPT, QuantOrder
from domain.errors import InvalidRequest, ModelLoadFailed
from domain.models.capability import PLAIN_USE, Capability, ModelUse
from domain.models.quantisation import Quantisation
from domain.speculation.drafter import Drafter
from tests.support.effort import IS_LONG
from tests.support.mlx.quantised_copies import copied, quantiser, same_bytes, tensors
from tests.support.mlx.tiny_heads import FAMILIES as HEADED
from tests.support.mlx.tiny_heads import head_folder, load_head
from tests.support.mlx.tiny_models import names, write_folder
from tests.support.mlx.vision.tiny_seers import write_seeing_folder

SEES = ModelUse(frozenset({Capability.GENERATE, Capability.SEE}))
MODES = ("affine", "mxfp4", "mxfp8", "nvfp4")
CHOSEN = ("llama", "qwen3_moe", "qwen3_5", "gemma3_text", "deepseek_v3", "falcon_h1")
"""Dense, a mixture whose routers have a rule of their own, hybrid, windowed, latents with experts, parallel hybrid."""

CASES = [(name, mode) for name in CHOSEN for mode in (MODES if name in CHOSEN[:2] else MODES[:2])]
if IS_LONG:
    CASES = [(name, mode) for name in names() if name != "fastvlm" for mode in MODES]  # its files lack a tower


class NoTokenizer:
    def save_pretrained(self, folder: Path) -> None:
        pass


def converted(folder: Path, out: Path, **arguments: Any) -> str:
    """Converts by mlx-lm, without the tokenizer: transformers refuses those of some families. Returns why it failed."""
    module = mlx_lm_module("convert")

    def load(path: str, **_: Any) -> Any:
        network, config = mlx_lm_module("utils").load_model(Path(path), lazy=True)
        return network, NoTokenizer(), config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "load", load)
        try:
            module.convert(str(folder), str(out), quantize=True, **arguments)
        except (ValueError, TypeError) as error:
            return str(error)
    return ""


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_copy_is_what_the_converter_of_mlx_lm_writes(name: str, mode: str, tmp_path: Path) -> None:
    folder = write_folder(name, tmp_path / "source", mx.bfloat16)
    failure = converted(folder, tmp_path / "theirs", q_mode=mode)
    if failure:
        with suppress(ModelLoadFailed):
            copied(folder, tmp_path / "copy", Quantisation.of(mode))
            assert any(part.endswith(".scales") for part in tensors(tmp_path / "copy"))
        return
    copied(folder, tmp_path / "copy", Quantisation.of(mode))
    ours, theirs = tensors(tmp_path / "copy"), tensors(tmp_path / "theirs")
    assert set(ours) == set(theirs)
    assert [part for part in ours if not same_bytes(ours[part], theirs[part])] == []
    for file in ("config.json", "model.safetensors.index.json"):
        assert (tmp_path / "copy" / file).read_text() == (tmp_path / "theirs" / file).read_text()


def test_a_mixed_recipe_is_that_of_mlx_lm(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "source", mx.bfloat16)
    copied(folder, tmp_path / "copy", recipe="mixed_3_6")
    assert converted(folder, tmp_path / "theirs", quant_predicate="mixed_3_6", q_group_size=64) == ""
    ours, theirs = tensors(tmp_path / "copy"), tensors(tmp_path / "theirs")
    assert set(ours) == set(theirs)
    assert all(same_bytes(ours[part], theirs[part]) for part in ours)
    assert (tmp_path / "copy" / "config.json").read_text() == (tmp_path / "theirs" / "config.json").read_text()


def test_a_recipe_leaves_a_familys_own_rule(tmp_path: Path) -> None:
    """Upstream's replaces it, and names no group size where none was given."""
    folder = write_folder("qwen3_moe", tmp_path / "source", mx.bfloat16)
    copied(folder, tmp_path / "copy", recipe="mixed_4_6")
    text = (tmp_path / "copy" / "config.json").read_text()
    forms = json.loads(text)["quantization"]
    assert "null" not in json.dumps(forms)
    assert {form["bits"] for path, form in forms.items() if path.endswith("mlp.gate")} == {8}
    assert {form["bits"] for path, form in forms.items() if path.endswith("q_proj")} == {4}


def test_rules_of_a_file_reach_every_matrix(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "source", mx.bfloat16)
    rules = {"*.down_proj": {"bits": 8, "group_size": 32}, "*.embed_tokens": False}
    receipt = copied(folder, tmp_path / "copy", recipe="own.json", rules=rules)
    found = {matrix.path: matrix.form for matrix in receipt.plan.matrices}
    assert found["model.layers.0.mlp.down_proj"] == Quantisation("affine", 8, 32)
    assert found["model.embed_tokens"] is None
    assert found["model.layers.0.mlp.up_proj"] == Quantisation()
    network, _ = open_network(tmp_path / "copy")
    mx.eval(network(mx.array([[1, 2, 3]])))


def test_experts_are_never_stacked_in_memory(tmp_path: Path) -> None:
    """The plan's largest step is that of one expert, and what is written is what a stack would have given."""
    folder = write_folder("qwen3_moe", tmp_path / "source", mx.bfloat16)
    weights = tensors(folder)
    apart: dict[str, mx.array] = {}
    for name, array in weights.items():
        base, switched, leaf = name.partition(".switch_mlp.")
        apart |= {f"{base}.experts.{at}.{leaf}": one for at, one in enumerate(array)} if switched else {name: array}
    mx.save_safetensors(str(folder / "model.safetensors"), apart)
    receipt = copied(folder, tmp_path / "copy")
    steps = {matrix.path: matrix for matrix in receipt.plan.matrices}
    stacked = steps["model.layers.0.mlp.switch_mlp.up_proj"]
    one = weights["model.layers.0.mlp.switch_mlp.up_proj.weight"][0].nbytes
    assert stacked.step_bytes == 41 * one
    assert converted(folder, tmp_path / "theirs") == ""
    ours, theirs = tensors(tmp_path / "copy"), tensors(tmp_path / "theirs")
    assert set(ours) == set(theirs)
    assert all(same_bytes(ours[part], theirs[part]) for part in ours)


# ---- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADED if IS_LONG else ["qwen3_5", "qwen3_next", "mimo"])
@pytest.mark.parametrize("is_published", [True, False])
def test_a_head_for_several_tokens_is_kept_and_drafts(name: str, is_published: bool, tmp_path: Path) -> None:
    """Also beside a trunk in another form than its own."""
    form = is_published if name.startswith("qwen3") else None
    folder = head_folder(name, tmp_path / "source", is_published=form if name != "qwen3_next" else True)
    copied(folder, tmp_path / "copy")
    assert (tmp_path / "copy" / HEADS).is_file()
    found, source = load_head(tmp_path / "copy"), load_head(folder)
    assert found.description.own_drafter is Drafter.HEAD, found.description.drafter_note
    heads = [dict(parameters(model._network.module.head)) for model in (found, source)]
    assert set(heads[0]) == set(heads[1])
    assert [part for part in heads[0] if not bool(mx.array_equal(heads[0][part], heads[1][part]))] == []


@pytest.mark.parametrize("name", ["qwen3_vl", "idefics3", "lfm2_vl"])
def test_a_tower_is_kept_byte_for_byte_and_sees(name: str, tmp_path: Path) -> None:
    folder = write_seeing_folder(name, tmp_path / "source")
    copied(folder, tmp_path / "copy", use=SEES)
    assert (tmp_path / "copy" / "preprocessor_config.json").read_bytes() == (
        folder / "preprocessor_config.json"
    ).read_bytes()
    kept = mx.load(str(tmp_path / "copy" / TOWER))
    source = tensors(folder)
    assert kept
    assert all(same_bytes(array, source[part]) for part, array in kept.items())  # type: ignore[union-attr]
    towers: list[dict[str, mx.array]] = []
    for one in (folder, tmp_path / "copy"):
        network, config = open_network(one, SEES)
        towers.append(dict(parameters(open_vision(one, config, network, "float32").module)))
    assert set(towers[0]) == set(towers[1])
    assert all(bool(mx.array_equal(towers[0][part], towers[1][part])) for part in towers[0])


def test_other_files_are_copied_and_named_by_a_receipt(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "source", mx.bfloat16)
    (folder / "LICENSE").write_text("terms")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    for other in ("pytorch_model.bin", "consolidated.safetensors", ".secret", "model.gguf"):
        (folder / other).write_bytes(b"\0" * 16)
    copied(folder, tmp_path / "copy", checks=True)
    found = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    assert {"LICENSE", "1_Pooling/config.json", "tokenizer.json", RECEIPT} <= found
    assert not {"pytorch_model.bin", "consolidated.safetensors", ".secret", "model.gguf", "quantise.json"} & found
    receipt = json.loads((tmp_path / "copy" / RECEIPT).read_text())
    assert receipt["form"] == {"mode": "affine", "bits": 4, "group": 64}
    assert receipt["quality"]["num_tokens"] > 0
    assert receipt["source"]["weights"] == ["model.safetensors"]
    assert not list(tmp_path.glob(".copy*"))


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_a_copy_of_a_copy_is_refused(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "source", mx.bfloat16)
    copied(folder, tmp_path / "copy")
    with pytest.raises(ModelLoadFailed, match="quantised already"):
        copied(tmp_path / "copy", tmp_path / "again")
    with pytest.raises(InvalidRequest) as refused:
        copied(folder, tmp_path / "copy")
    assert refused.value.param == "out"


def test_a_family_that_is_unknown_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "source", mx.bfloat16)
    config = dict(read_config(folder)) | {"model_type": "nonesuch"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadFailed, match="nonesuch"):
        copied(folder, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "source", mx.bfloat16)
    with pytest.raises(ModelLoadFailed, match="encoder"):
        copied(folder, tmp_path / "copy", use=ModelUse(is_encoder=True))


def test_rows_that_do_not_divide_are_told_by_the_plan(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "source", mx.bfloat16)
    order = QuantOrder(str(folder), str(tmp_path / "copy"), PLAIN_USE, Quantisation("affine", 4, 128))
    plan = quantiser().plan(order, lambda _: None)
    assert plan.refusal(is_pooled=False, force=False, allow_plain=False)[0] in ("group", "model")
