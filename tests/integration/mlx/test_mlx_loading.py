"""Model folders on MLX: loaded, described, identified by content; what is wrong with one is said in words."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from adapters.huggingface.repository import HuggingFaceRepository
from adapters.mlx.engine import MlxEngine
from adapters.mlx.loading.network import NO_OWN_CODE
from adapters.mlx.loading.plan import check_source, plan_model
from adapters.mlx.loading.weights_digest import digest_folder
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from application.ports.compute import LoadedModel
from domain.errors import ModelLoadFailed
from domain.ids import ModelId
from domain.models.model_card import LoadOptions, ModelSource
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.tiny_models import build, write_folder
from tests.support.stores.state_replay import continue_greedy, open_at, prompt_of

PROMPT = prompt_of(50)
Damage = Callable[[Path], object]


def load(folder: Path, dtype: str = "auto") -> LoadedModel:
    return finish_load(MlxEngine().load(ModelSource(ModelId("tiny"), str(folder)), LoadOptions(dtype)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder("qwen3", tmp_path_factory.mktemp("models") / "qwen3", mx.bfloat16)


def test_a_folder_is_loaded_and_described(folder: Path) -> None:
    engine = MlxEngine()
    model = finish_load(engine.load(ModelSource(ModelId("my-name"), str(folder)), LoadOptions()))
    description = model.description
    config = json.loads((folder / "config.json").read_text())
    assert description.id == "my-name"
    assert description.model_type == "qwen3"
    assert description.vocab_size == config["vocab_size"]
    assert description.context_length == 4096
    eos = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert description.eos_token_ids == set(eos)
    assert description.runtime.startswith("mlx-lm 0.3")
    assert len(continue_greedy(model, open_at(model, PROMPT), PROMPT, 5)) == 5
    engine.unload(model)
    assert not model.open_ids()


def test_dtypes_are_as_asked(folder: Path) -> None:
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    auto = load(folder).description
    half = load(folder, "bfloat16").description
    assert auto.dtype == ("float32" if on_cpu else "bfloat16")
    assert half.dtype == "bfloat16"
    assert load(folder, "float16").description.dtype == "float16"
    assert load(folder, "float32").description.weight_bytes == 2 * half.weight_bytes


def test_parameters_that_must_not_be_cast_are_not(tmp_path: Path) -> None:
    """qwen3_next keeps the decay of its recurrence in float32."""
    model = load(write_folder("qwen3_5", tmp_path / "m"), "bfloat16")
    id = open_at(model, PROMPT)
    (state,) = (
        payload
        for index, payload in model.capture_snapshot(id, len(PROMPT) - 1).items()
        if model.description.layout.groups[index].policy.value == "snapshot"
    )
    assert {spec.dtype for spec in state.specs} == {"bfloat16", "float32"}
    assert model.description.context_length == 4096
    model.close([id])


def test_quantised_weights_keep_their_dtype(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "q", mx.bfloat16)
    config = json.loads((folder / "config.json").read_text())
    network = build("llama", mx.bfloat16, vocab_size=config["vocab_size"])
    nn.quantize(network, group_size=32, bits=4)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())))
    (folder / "config.json").write_text(json.dumps({**config, "quantization": {"group_size": 32, "bits": 4}}))
    model = load(folder)
    assert model.description.dtype == "bfloat16"
    assert len(continue_greedy(model, open_at(model, PROMPT), PROMPT, 4)) == 4


def _removed(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def _config(content: str) -> Damage:
    return lambda folder: (folder / "config.json").write_text(content)


def _changed(**values: Any) -> Damage:
    """Values of the configuration; None: without it."""

    def change(folder: Path) -> None:
        config = {**json.loads((folder / "config.json").read_text()), **values}
        (folder / "config.json").write_text(json.dumps({name: one for name, one in config.items() if one is not None}))

    return change


def _cut(num_bytes: int) -> Damage:
    return lambda folder: os.truncate(folder / "model.safetensors", num_bytes)


def _no_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0[1, 2, {}]      " + bytes(100))


def _write_header(folder: Path, offset: str, shape: str) -> None:
    header = f'{{"a": {{"dtype": "F32", "shape": [{shape}], "data_offsets": [0, {offset}]}}}}'.encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(100))


def _endless_numbers(folder: Path) -> None:
    _write_header(folder, "9" * 4300, "1")


def _endless_product(folder: Path) -> None:
    _write_header(folder, "4", ",".join(["9" * 18] * 300))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_removed("config.json"), "no config.json"),
        (_config('{"model_type":' + "[" * 200_000), "cannot be read"),
        (_config("[]"), "must hold a JSON object"),
        (_changed(model_type="perpetuum_mobile"), "no model type 'perpetuum_mobile'"),
        (
            _changed(text_config={"num_hidden_layers": 100_000_000}),
            "num_hidden_layers is 100000000, but at most 2048 are built",
        ),
        (_removed("model.safetensors"), "no weights"),
        (_cut(5000), "truncated"),
        (_cut(100), "could not be loaded"),
        (_no_safetensors, "could not be loaded"),
        (_endless_numbers, "is not a tensor"),
        (_endless_product, "is not a tensor"),
    ],
)
def test_the_check_before_a_load_names_the_fault_of_a_folder(tmp_path: Path, damage: Damage, words: str) -> None:
    folder = write_folder("qwen3", tmp_path / "broken")
    damage(folder)
    with pytest.raises(ModelLoadFailed, match=words):
        check_source(ModelSource(ModelId("m"), str(folder)), LoadOptions())


def test_what_a_load_takes_is_known_before_it(folder: Path) -> None:
    source = ModelSource(ModelId("m"), str(folder))
    assert check_source(source, LoadOptions()).weight_bytes == load(folder).description.weight_bytes


def test_a_value_that_the_configuration_lacks_is_named(tmp_path: Path) -> None:
    """What else only a load finds out: test_mlx_faults."""
    folder = write_folder("qwen3", tmp_path / "broken")
    _changed(num_hidden_layers=None)(folder)
    with pytest.raises(ModelLoadFailed, match="num_hidden_layers"):
        load(folder)


def test_a_path_that_is_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match="is not a folder"):
        load(tmp_path / "nowhere")


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    first = write_folder("llama", tmp_path / "a")
    same = write_folder("llama", tmp_path / "b")
    other = write_folder("llama", tmp_path / "c", seed=1)
    digests = [digest_folder(folder, memory) for folder in (first, same, other)]
    assert len(digests[0]) == 16
    assert digests[0] == digests[1] != digests[2]
    assert [digest_folder(folder, memory) for folder in (first, same, other)] == digests
    (first / "config.json").write_text((first / "config.json").read_text() + " ")
    assert digest_folder(first, memory) != digests[0]


def _other_bytes_of_equal_size_and_time(file: Path, *, replaces: bool) -> None:
    """As rsync, tar or cp -p leave it: nothing to see in size and modification time."""
    before, content = file.stat(), bytearray(file.read_bytes())
    content[-1] ^= 1
    target = file.with_suffix(".new") if replaces else file
    while True:  # until the clock of the file system has moved on
        target.write_bytes(content)
        os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
        if target.stat().st_ctime_ns != before.st_ctime_ns:
            break
    if replaces:
        target.replace(file)
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.mark.parametrize("replaces", [True, False])
def test_other_weights_of_equal_size_and_time_have_another_digest(tmp_path: Path, replaces: bool) -> None:
    folder, memory = write_folder("llama", tmp_path / "a"), tmp_path / "memory"
    before = digest_folder(folder, memory)
    _other_bytes_of_equal_size_and_time(folder / "model.safetensors", replaces=replaces)
    assert digest_folder(folder, memory) == digest_folder(folder, None) != before


def test_an_unchanged_file_is_hashed_once(tmp_path: Path) -> None:
    folder, memory = write_folder("llama", tmp_path / "a"), tmp_path / "memory"
    before = digest_folder(folder, memory)
    (remembered,) = memory.iterdir()
    entries = json.loads(remembered.read_text())
    assert len(entries) == 2
    remembered.write_text(json.dumps({path: [*entry[:-1], "00" * 16] for path, entry in entries.items()}))
    assert digest_folder(folder, memory) != before


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "qwen2_moe"])
def test_experts_are_told_from_other_weights(name: str, tmp_path: Path) -> None:
    source = ModelSource(ModelId("m"), str(write_folder(name, tmp_path / name)))
    checked, planned = check_source(source, LoadOptions()), plan_model(source, LoadOptions())
    experts = [
        array.nbytes
        for _module, layer in build(name).named_modules()
        if type(layer).__name__ == "SwitchGLU"
        for _, array in tree_flatten(layer.parameters())
    ]
    assert 0 < checked.expert_bytes < checked.weight_bytes
    assert checked.expert_bytes == planned.expert_bytes == sum(experts)


def test_arithmetic_names_the_blas(folder: Path) -> None:
    source, options = ModelSource(ModelId("m"), str(folder)), LoadOptions()
    found = [finish_load(MlxEngine(blas=blas).load(source, options)).description for blas in ("", "B 1")]
    assert found[0].arithmetic
    assert found[0].runtime == found[1].runtime
    if mx.default_device() == mx.Device(mx.cpu):
        assert "built-in" in found[0].arithmetic
        assert "B 1" in found[1].arithmetic


def test_an_invalid_file_of_digests_is_ignored(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "a")
    expected = digest_folder(folder, None)
    memory = tmp_path / "memory"
    digest_folder(folder, memory)
    (remembered,) = memory.iterdir()
    for content in ("", "[]", "{", "[" * 100_000, '{"x": 1}', json.dumps({str(folder / "config.json"): [1, 2, "zz"]})):
        remembered.write_text(content)
        assert digest_folder(folder, memory) == expected
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert digest_folder(folder, blocked / "below") == expected


# ---- a model is data: its Python file is never run ------------------------------------------------------------------


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
def test_a_model_file_is_refused_before_a_weight_is_read(tmp_path: Path, name: object) -> None:
    """The weights are missing too, but the error is about the file."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "model_file": name}))
    with pytest.raises(ModelLoadFailed, match="model_file"):
        load(tmp_path)


def test_a_model_with_a_model_file_is_not_served(hostile: Path) -> None:
    repository = HuggingFaceRepository([str(hostile.parent)], cache=hostile.parent / "none")
    assert repository.find(ModelId("hostile")) is None
    assert "hostile" not in [source.id for source in repository.list()]
    with pytest.raises(ModelLoadFailed, match="model_file"):
        repository.fetch(ModelId("hostile"), lambda _progress: None)
    with pytest.raises(ModelLoadFailed, match="model_file"):
        load(hostile)
    assert not (hostile / "ran").exists()


def test_a_model_file_that_appears_after_the_check_is_not_run(hostile: Path) -> None:
    network, config = mlx_lm_module("utils").load_model(hostile, lazy=True, model_config=NO_OWN_CODE)
    assert type(network).__module__ == "mlx_lm.models.llama"
    assert config["model_file"] is None
    assert not (hostile / "ran").exists()
