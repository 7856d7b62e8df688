"""The families whose text mlx-vlm computes: each is exact, and every other of its families has a reason."""

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from adapters.mlx.engine import MlxEngine
from adapters.mlx.loading.assembly import assemble
from adapters.mlx.loading.context import context_of
from adapters.mlx.loading.lora import read_adapter
from adapters.mlx.loading.network import ModelFacts, open_network
from adapters.mlx.loading.plan import check_source, plan_model
from adapters.mlx.loading.trunks import classes_of
from adapters.mlx.runtime.mlx_lm import ALIASES, knows_model_type, mlx_lm_module
from adapters.mlx.speculation.drafting import family_of
from adapters.mlx.vlm import caches, families, library
from adapters.mlx.vlm.families import REFUSED, SERVED, why_unserved
from adapters.mlx.vlm.trunk import VlmArguments, VlmTrunk
from domain.errors import ModelLoadFailed
from domain.ids import ModelId
from domain.models.model_card import DecodeMode, LoadOptions, ModelSource
from domain.models.state_layout import StateLayout
from tests.support.effort import IS_LONG
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.tiny_configs import COMMON, FAMILIES, WHOLE
from tests.support.mlx.tiny_models import build, config_of, tiny_model, write_folder
from tests.support.mlx.tiny_vlm_configs import VLM_FAMILIES
from tests.support.mlx.trunk_proof import chunk_faults
from tests.support.patience import PATIENCE_S
from tests.support.stores.state_replay import prompt_of

pytest.importorskip("mlx_vlm")

ROOT = Path(__file__).parents[3]

OF_EACH_LAYOUT = {
    *{"deepseek_v4", "glm5_next", "hy_v4", "longcat_flash_sparse", "qwen4_exp"},  # each has caches of its own
    *{"nemotron_h_nano_omni", "mimo_v2", "step3p7"},  # recurrent, and windows
    *{"k2_horizon", "mllama", "molmo", "llava_next"},  # full attention
}
PROVED = sorted(SERVED if IS_LONG else OF_EACH_LAYOUT & SERVED)
"""A quarter of the families has every layout of caches; a long run proves all of them."""


@pytest.fixture(scope="module")
def proofs() -> dict[str, list[str]]:
    """The faults of each family, by a process that may end early; compiled as in a server."""
    environment = {name: value for name, value in os.environ.items() if name != "MLX_DISABLE_COMPILE"}
    command = [sys.executable, "-m", "tests.support.mlx.trunk_proof", *PROVED]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=20 * PATIENCE_S)
    found = dict[str, list[str]](json.loads(line) for line in ended.stdout.splitlines() if line.startswith("["))
    missing = f"the process ended with {ended.returncode}: {ended.stderr[-300:]}"
    return {name: found.get(name, [missing]) for name in PROVED}


@pytest.mark.parametrize("name", PROVED)
def test_a_family_is_exact_in_chunks_restored_and_in_a_batch(name: str, proofs: dict[str, list[str]]) -> None:
    assert proofs[name] == []


def test_every_served_family_has_a_tiny_configuration() -> None:
    assert set(VLM_FAMILIES) == SERVED


def test_every_family_of_the_installed_mlx_vlm_is_served_or_has_a_reason() -> None:
    folder = Path(library.vlm_module("models").__path__[0])
    found = {path.parent.name for path in folder.glob("*/__init__.py")}
    by_mlx_lm = {name for name in found if knows_model_type(name)}
    assert found - by_mlx_lm - SERVED - set(REFUSED) == set(), "a family that nobody has decided about"
    assert set(REFUSED) - found == set(), "a reason for a family that is gone"
    assert set(REFUSED) & (by_mlx_lm | SERVED) == set()
    assert found - by_mlx_lm >= SERVED, "mlx-lm comes first"


NOT_READ = {
    "AudioConvCache": "speech",
    "BatchDeepseekV41Cache": "mlx-lm computes this family",
    "BatchPoolingCache": "rows: mlx-vlm's own server makes them",
    "BatchQSAKVCache": "rows",
    "BatchQuantizedKVCache": "rows",
    "BufferedRotatingKVCache": "drafts of mlx-vlm's own server",
    "CacheMemory": "no cache",
    "DeepseekV41Cache": "mlx-lm computes this family",
    "Flux2KVCache": "pictures",
    "Flux2KVLayerCache": "pictures",
    "HyV4KVCache": "bound to mlx-lm's class by the family's mend",
    "MiniMaxH3AdaLNCache": "pictures",
    "MiniMaxM3BatchKVCache": "rows",
    "MiniMaxM3KVCache": "mlx-lm computes this family",
    "QSAQuantizedKVCache": "quantised state of mlx-vlm's own server",
    "QuantizedKVCache": "quantised state of mlx-vlm's own server",
    "QwenImageKVCache": "pictures",
    "QwenImageKVLayerCache": "pictures",
    "RingSlidingKVCache": "unlimited_ocr is refused",
    "SimpleKVCache": "encoder-decoders are refused",
    "StaticPrefixKVCache": "diffusion is refused",
    "Z1TCache": "z1t is refused",
    "BatchKVCache": "rows",
    "BatchRotatingKVCache": "rows",
    "_BaseCache": "no layer's",
}
"""Cache classes of mlx-vlm that no served family makes for a layer, and why."""


def test_every_cache_class_of_the_installed_mlx_vlm_is_translated_or_not_made() -> None:
    folder = Path(library.vlm_module("models").__path__[0])
    found = set(re.findall(r"^class (\w*Cache\w*)", "\n".join(path.read_text() for path in folder.rglob("*.py")), re.M))
    translation = inspect.getsource(caches)
    translated = {name for name in found if f'case "{name}"' in translation}
    assert found - translated == set(NOT_READ)


MINIMAX_M3: dict[str, Any] = WHOLE["minimax_m3_vl"]["text_config"]
ALIASED: dict[str, dict[str, Any]] = {
    "klear": FAMILIES["Klear"],
    "lille_130m": FAMILIES["lille-130m"],
    "minimax_m3": {
        **MINIMAX_M3,
        # mlx-vlm selects blocks for all heads at once: with one head that is what transformers selects
        "sparse_attention_config": {
            **MINIMAX_M3["sparse_attention_config"],
            "use_sparse_attention": True,
            "sparse_num_index_heads": 1,
        },
    },
    "nemotron_nas": FAMILIES["nemotron-nas"],
    "qwen3_5_text": {**FAMILIES["qwen3_next"], "num_experts": 0},
    "qwen3_5_moe_text": FAMILIES["qwen3_next"],
}


@pytest.mark.exact
@pytest.mark.parametrize("name", ALIASES)
def test_a_module_of_mlx_lm_under_another_name_computes_what_mlx_vlm_does(name: str) -> None:
    config = {**COMMON, "full_attention_interval": 2, **ALIASED[name], "model_type": name}
    package = library.vlm_module(f"models.{name}")
    mx.random.seed(0)
    peer = VlmTrunk(package, VlmArguments(package).from_dict(config)).language_model
    model, arguments = classes_of(config)
    network = model(arguments.from_dict(config))
    weights = dict(tree_flatten(peer.parameters()))
    prefix = "language_model." if "language_model" in network else ""
    sanitized = (
        network.sanitize(dict(weights))
        if name == "minimax_m3"
        else {prefix + key: array for key, array in weights.items()}
    )
    network.load_weights(list(sanitized.items()))
    tokens = mx.array([prompt_of(90)])
    assert mx.allclose(network(tokens), peer(tokens).logits, atol=1e-4).item()


def test_the_list_of_served_families_is_printed() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert f"mlx-vlm's: {', '.join(f'`{name}`' for name in sorted(SERVED))}." in " ".join(text.split())


def test_a_model_that_needs_mlx_vlm_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder("k2_horizon", tmp_path / "k2")
    monkeypatch.setattr(families, "missing", lambda: "mlx-vlm is not installed: pip install it")
    assert why_unserved("llama") == ""
    source, options = ModelSource(ModelId("k2"), str(folder)), LoadOptions()
    loads: list[Callable[[], object]] = [
        lambda: check_source(source, options),
        lambda: plan_model(source, options),
        lambda: finish_load(MlxEngine().load(source, options)),
    ]
    for load in loads:
        with pytest.raises(ModelLoadFailed, match="'k2_horizon' are computed by mlx-vlm: mlx-vlm is not installed: p"):
            load()


def test_a_refused_family_and_an_unknown_one_have_their_reasons() -> None:
    assert why_unserved("florence2") == f"models of type 'florence2' are not served: {REFUSED['florence2']}"
    assert why_unserved("alien") == "mlx-lm and mlx-vlm have no model type 'alien'"


def test_the_library_is_part_of_the_runtime_that_names_stored_state() -> None:
    assert "mlx-vlm 0.7" in tiny_model("k2_horizon").description.runtime
    assert "mlx-vlm" not in tiny_model("llama").description.runtime


def test_a_family_that_is_wrong_in_batches_beyond_its_probe_decodes_one_sequence_at_a_time() -> None:
    network, config = (make("longcat_flash_sparse", index_topk=64) for make in (build, config_of))
    model = finish_load(assemble(network, ModelId("longcat"), ModelFacts(config)))
    assert model.description.decode_mode is DecodeMode.SINGLE


@pytest.mark.exact
def test_scaled_positions_do_not_depend_on_the_division_of_a_prompt() -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    scaling = {"type": "longrope", "original_max_position_embeddings": 64, **factors}
    network = build("k2_horizon", rope_scaling=scaling, max_position_embeddings=256)
    assert list(chunk_faults(network)) == []


def test_a_family_is_known_by_the_module_of_its_network() -> None:
    assert family_of(build("k2_horizon")) == "k2_horizon"
    assert family_of(build("mistral_large3")) == "deepseek_v3"


def test_the_length_of_the_context_is_a_default_of_the_code() -> None:
    config = {name: value for name, value in config_of("k2_horizon").items() if name != "max_position_embeddings"}
    found = context_of(config, StateLayout(()), {})
    assert (found.length, found.origin) == (524_288, "mlx-vlm's default")


def test_layers_that_a_conversion_names_without_the_prefix_are_quantised_as_it_says(tmp_path: Path) -> None:
    folder, layer = write_folder("step3p7", tmp_path / "step"), "model.layers.1.mlp.gate.gate"
    network, _ = open_network(folder)
    widths = {f"language_model.{layer}": {"group_size": 32, "bits": 8}}
    nn.quantize(network, 32, 4, class_predicate=lambda path, module: _may_quantise(module) and widths.get(path, True))
    mx.eval(network.parameters())
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())))
    config = json.loads((folder / "config.json").read_text())
    quantisation = {"group_size": 32, "bits": 4, layer: widths[f"language_model.{layer}"]}
    (folder / "config.json").write_text(json.dumps({**config, "quantization": quantisation}))
    found, _ = open_network(folder)
    tokens = mx.array([[5, 9, 200]])
    assert mx.array_equal(found(tokens), network(tokens)).item()


def _may_quantise(module: Any) -> bool:
    return hasattr(module, "to_quantized") and module.weight.shape[-1] % 32 == 0


@pytest.mark.parametrize("name", ["cohere2_moe", "flint", "hrm_text", "k2_horizon", "kolibri1", "step3p7"])
def test_weights_under_their_makers_names_are_those_of_a_conversion(tmp_path: Path, name: str) -> None:
    """The makers' files have no prefix of a text."""
    folder = write_folder(name, tmp_path / name)
    expected = dict(tree_flatten(open_network(folder)[0].parameters()))
    mx.eval(expected)
    named = {key.removeprefix("language_model."): array for key, array in expected.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), named)
    found = dict(tree_flatten(open_network(folder)[0].parameters()))
    assert found.keys() == expected.keys()
    assert all(mx.array_equal(found[key], array).item() for key, array in expected.items())


def test_weights_that_mlx_vlm_would_convert_first_are_refused(tmp_path: Path) -> None:
    folder = write_folder("k2_horizon", tmp_path / "k2")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(ModelLoadFailed, match="quantised by 'fp8', which is read for families of mlx-lm only"):
        open_network(folder)


@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_an_adapter_fits_with_the_prefix_of_the_text_and_without(tmp_path: Path, prefix: str) -> None:
    def adapted(seed: int) -> dict[str, mx.array]:
        network = build("k2_horizon")
        mx.random.seed(seed)
        mlx_lm_module("tuner.utils").linear_to_lora_layers(network, 2, {"rank": 4, "scale": 2.0, "dropout": 0.0})
        return {name: array for name, array in tree_flatten(network.parameters()) if "lora_" in name}

    arrays = {name: mx.random.normal(array.shape) for name, array in adapted(1).items()}
    named = {prefix + name.removeprefix("language_model."): array for name, array in arrays.items()}
    mx.save_safetensors(str(tmp_path / "adapters.safetensors"), named)
    settings = {"num_layers": 2, "lora_parameters": {"rank": 4, "scale": 2.0}}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    network = build("k2_horizon")
    read_adapter(tmp_path).apply(network)
    found = dict(tree_flatten(network.parameters()))
    assert all(mx.array_equal(found[name], array).item() for name, array in arrays.items())
