"""Forms in which checkpoints lie on hubs, made of a model folder with one `model.safetensors`."""

import json
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from domain.models.weight_files import INDEX

ONE = "model.safetensors"


def stored(folder: Path) -> dict[str, mx.array]:
    """Read at once, so that the file may be replaced."""
    weights = cast("dict[str, mx.array]", mx.load(str(folder / ONE)))
    mx.eval(weights)
    return weights


def write_index(folder: Path, shard_of: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))


def with_stale_index(folder: Path) -> None:
    """A conversion that kept the index of its source."""
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    write_index(folder, {name: names[at % 3] for at, name in enumerate(stored(folder))})


def sharded(folder: Path, *, index: bool = True) -> None:
    weights = stored(folder)
    names = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    shard_of = {name: names[at % 2] for at, name in enumerate(weights)}
    for shard in names:
        mx.save_safetensors(str(folder / shard), {name: weights[name] for name in weights if shard_of[name] == shard})
    (folder / ONE).unlink()
    if index:
        write_index(folder, shard_of)


def sharded_beside_another_conversion(folder: Path) -> None:
    """The shards that the index names, and a file of other shapes that it does not."""
    whole = (folder / ONE).read_bytes()
    sharded(folder)
    (folder / ONE).write_bytes(whole)
    mx.save_safetensors(str(folder / ONE), {name: mx.zeros((2, 2)) for name in stored(folder)})


def of_another_name(folder: Path) -> None:
    (folder / ONE).rename(folder / "weights.safetensors")


def with_absent_head(folder: Path) -> None:
    """An index that names a file of the source's head, which the conversion left out."""
    write_index(folder, {**dict.fromkeys(stored(folder), ONE), "mtp.fc.weight": "mtp.safetensors"})


def with_output_matrix(folder: Path) -> None:
    """A copy of tied embeddings as an output matrix, which transformers writes for some models."""
    weights = stored(folder)
    embedding = next(name for name in weights if name.endswith(("embed_tokens.weight", "wte.weight")))
    prefix = "language_model." if embedding.startswith("language_model.") else ""
    mx.save_safetensors(str(folder / ONE), {**weights, f"{prefix}lm_head.weight": weights[embedding]})


def with_table_of_positions(folder: Path) -> None:
    """A buffer that old programs stored with the weights."""
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": mx.zeros((8,))}
    mx.save_safetensors(str(folder / ONE), {**stored(folder), **buffer})


def with_names(folder: Path, text: str, head: str) -> None:
    """`text`, `head`: what stands before the names of the text and of the output matrix of a model with images."""
    renamed: dict[str, mx.array] = {}
    for name, array in stored(folder).items():
        name = name.replace("language_model.model.", f"{text}.").replace("language_model.lm_head.", f"{head}.")
        renamed[name] = array
    mx.save_safetensors(str(folder / ONE), renamed, metadata={"format": "pt"})


def with_eight_bits(folder: Path) -> None:
    """The values of one matrix in 8 bits, without scales."""
    weights = stored(folder)
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    mx.save_safetensors(str(folder / ONE), {**weights, name: mx.to_fp8(weights[name])})


def with_malformed_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [1,')


def with_rope_parameters(folder: Path) -> None:
    """As transformers writes config.json from its version 5 on."""
    config = json.loads((folder / "config.json").read_text())
    level = config.get("text_config", config)
    moved = {key: level.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in level}
    local = level.pop("rope_local_base_freq", None)
    level["rope_parameters"] = {"rope_type": "default", **moved, **(level.pop("rope_scaling", None) or {})}
    if local is not None:
        sliding = {"rope_type": "default", "rope_theta": local}
        level["rope_parameters"] = {"full_attention": level["rope_parameters"], "sliding_attention": sliding}
    (folder / "config.json").write_text(json.dumps(config))


FORMS: tuple[Any, ...] = (
    *(with_stale_index, sharded, sharded_beside_another_conversion, of_another_name, with_absent_head),
    *(with_output_matrix, with_malformed_generation_config, with_table_of_positions),
)
