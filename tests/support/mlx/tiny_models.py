"""Tiny random models of every family, in memory or as a folder that any loader takes.

`build` is deterministic: one name, dtype and seed give the same weights bit for bit.
"""

import dataclasses
import importlib
import json
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from adapters.mlx.loading.assembly import assemble
from adapters.mlx.loading.network import ModelFacts, keep_quantised
from adapters.mlx.loading.trunks import classes_of
from adapters.mlx.model import MlxModel
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from adapters.mlx.vlm.library import missing
from domain.ids import ModelId
from domain.memory.kv_bits import KVBits
from tests.support.engines.finish_load import finish_load
from tests.support.mlx import tiny_tokenizers
from tests.support.mlx.tiny_configs import COMMON, FAMILIES, VARIANTS, WHOLE, WRAPPED
from tests.support.mlx.tiny_vlm_configs import VLM_FAMILIES, vlm_config_of

_HELPER_MODULES = frozenset(
    {"activations", "base", "bitlinear_layers", "cache", "gated_delta", "mla", "pipeline", "rope_utils", "ssm"}
    | {"switch_layers"}
)


def names() -> list[str]:
    """Every tiny model that the installed libraries can run, variants included."""
    installed = set(modules())
    families = [name for name in (*FAMILIES, *WRAPPED, *WHOLE) if name in installed]
    variants = [name for name, (family, _) in VARIANTS.items() if family in installed]
    return sorted([*families, *variants, *([] if missing() else VLM_FAMILIES)], key=str.lower)


def modules() -> list[str]:
    """Every model module of the installed mlx-lm."""
    package = mlx_lm_module("models")
    return sorted(found.name for found in pkgutil.iter_modules(package.__path__) if found.name not in _HELPER_MODULES)


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """What the model's config.json would say. `changes` go where the text model's values are."""
    family, overrides = VARIANTS.get(name, (name, {}))
    if family in VLM_FAMILIES:
        return vlm_config_of(family, changes)
    if family in WHOLE:
        return _nested(family, WHOLE[family], changes)
    if family in WRAPPED:
        inner, own = WRAPPED[family]
        text = {**config_of(inner), **own}
        return _nested(family, {"vocab_size": text["vocab_size"], "text_config": text}, changes)
    arguments = importlib.import_module(f"mlx_lm.models.{family}").ModelArgs
    known = {field.name for field in dataclasses.fields(arguments)}
    common = {key: value for key, value in COMMON.items() if key in known}
    return {**common, "model_type": family, **FAMILIES[family], **overrides, **changes}


def _nested(family: str, config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    outer = {key: changes.get(key, value) for key, value in config.items() if key != "text_config"}
    return {**outer, "model_type": family, "text_config": {**config["text_config"], **changes}}


def build(name: str, dtype: mx.Dtype = mx.float32, seed: int = 0, **changes: Any) -> Any:
    """A network with random weights, evaluated on this thread, ready to infer."""
    return build_from(config_of(name, **changes), dtype, seed)


def build_from(config: Mapping[str, Any], dtype: mx.Dtype = mx.float32, seed: int = 0) -> Any:
    """The same for any configuration, as config.json holds it."""
    model, arguments = classes_of(dict(config))
    mx.random.seed(seed)
    network = model(arguments.from_dict(config))
    may_cast = getattr(network, "cast_predicate", lambda _name: True)
    weights: list[tuple[str, mx.array]] = []
    for key, value in tree_flatten(network.parameters()):
        if mx.issubdtype(value.dtype, mx.floating):
            if value.ndim >= 2 and not mx.any(value != 0).item():  # zeros would hide a path from every test
                value = mx.random.normal(value.shape) / max(value.shape[-1], 1) ** 0.5
            value = value.astype(dtype) if may_cast(key) else value
        weights.append((key, value))
    network.update(tree_unflatten(weights))
    mx.eval(network.parameters())
    network.eval()
    return network


def tiny_model(name: str, dtype: mx.Dtype = mx.float32, seed: int = 0, kv_bits: KVBits | None = None) -> MlxModel:
    """A LoadedModel that needs no files."""
    digest = f"{name} {dtype} {seed}".encode()
    facts = ModelFacts(config_of(name), eos_token_ids=frozenset({2}), digest=digest)
    network = build(name, dtype, seed)
    if kv_bits is not None:
        keep_quantised(network, facts.config, kv_bits)
    return finish_load(assemble(network, ModelId(name), facts))


def write_folder(name: str, folder: Path, dtype: mx.Dtype = mx.float32, seed: int = 0) -> Path:
    """A model folder with a byte-level tokenizer and a chat template, as a hub download would leave it."""
    tokenizer = tiny_tokenizers.byte_level()
    vocab_size = tokenizer.get_vocab_size()
    tiny_tokenizers.write_folder(folder, tokenizer)
    network = build(name, dtype, seed, vocab_size=vocab_size)
    eos = tokenizer.token_to_id("</s>")
    config = {**config_of(name, vocab_size=vocab_size), "eos_token_id": eos}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    turn_end = tokenizer.token_to_id("<|im_end|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [eos, turn_end]}), encoding="utf-8")
    save(network, folder)
    return folder


def save(network: Any, folder: Path) -> None:
    """Write the weights' part of a model folder."""
    weights = dict(tree_flatten(network.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
