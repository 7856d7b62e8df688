"""A LoRA adapter in mlx-lm's format, laid over a network: `adapter_config.json` and `adapters.safetensors`.

An adapter is data, as a model is: weights are safetensors, and of its configuration only the numbers and names that say
which layers it changes are read. Every tensor of the file must belong to a layer that the configuration names, with
its very shape, and none may be missing: half an adapter is another model, which would go unnoticed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.loading.safetensors_file import StoredTensor, read_tensors
from adapters.mlx.runtime.arrays import parameters
from adapters.mlx.runtime.file_limit import mlx_lm_module
from adapters.mlx.runtime.json_numbers import is_count, is_number
from domain.errors import ModelLoadFailed
from domain.shown import shown

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapters.safetensors"
_PEFT_NAME = "adapter_model.safetensors"

MAX_RANK = 4_096
_LEAVES = frozenset({"lora_a", "lora_b", "m"})
"""Names that mlx-lm gives what an adapter adds to a layer; `m` is DoRA's."""


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """An adapter by its files. `num_layers`: how many of the last layers it changes. `tensors`: by name."""

    folder: Path
    num_layers: int
    is_dora: bool
    parameters: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors.values())


def read_adapter(folder: Path) -> AdapterFolder:
    """Look at an adapter without reading its weights. Raises ModelLoadFailed."""
    config = _read_config(folder)
    kind, num_layers, lora = (
        config.get("fine_tune_type", "lora"),
        config.get("num_layers"),
        config.get("lora_parameters"),
    )
    where = folder / CONFIG_NAME
    if kind not in ("lora", "dora"):
        raise ModelLoadFailed(f"{where}: fine_tune_type must be lora or dora, not {str(kind)[:40]!r}")
    if not is_count(num_layers) or not isinstance(lora, dict):
        raise ModelLoadFailed(f"{where} names no num_layers and lora_parameters")
    wanted = cast(dict[str, Any], lora)
    rank, scale, keys = wanted.get("rank"), wanted.get("scale"), wanted.get("keys")
    if not is_count(rank) or not 1 <= rank <= MAX_RANK:
        raise ModelLoadFailed(f"{where}: lora_parameters.rank must be in 1..{MAX_RANK}")
    if not is_number(scale):
        raise ModelLoadFailed(f"{where}: lora_parameters.scale must be a number")
    if keys is not None and not _are_names(keys):
        raise ModelLoadFailed(f"{where}: lora_parameters.keys must be names of layers")
    # Dropout is for training; mlx-lm wants a value.
    laid = {
        "rank": rank,
        "scale": float(scale),
        "dropout": 0.0,
        **({} if keys is None else {"keys": set(cast(list[str], keys))}),
    }
    return AdapterFolder(folder, num_layers, kind == "dora", laid, _read_weights(folder))


def lay_adapter(network: Any, folder: Path) -> None:
    """Put an adapter's layers around those of a network. Raises ModelLoadFailed when they do not fit."""
    adapter = read_adapter(folder)
    mlx_lm_module("tuner.utils").linear_to_lora_layers(
        network, adapter.num_layers, adapter.parameters, use_dora=adapter.is_dora
    )
    expected = {name: array.shape for name, array in parameters(network) if name.rpartition(".")[2] in _LEAVES}
    _compare(adapter, expected)
    weights = cast(dict[str, mx.array], mx.load(str(folder / WEIGHTS_NAME)))
    network.load_weights(list(weights.items()), strict=False)
    network.eval()


def _compare(adapter: AdapterFolder, expected: Mapping[str, tuple[int, ...]]) -> None:
    for name, tensor in adapter.tensors.items():
        if name not in expected:
            raise ModelLoadFailed(
                f"the adapter {adapter.folder} does not belong to this model: it has no layer for {shown(name)}"
            )
        if tuple(expected[name]) != tensor.shape:
            raise ModelLoadFailed(
                f"the adapter {adapter.folder} does not belong to this model: {shown(name)} has the shape"
                f" {list(tensor.shape)}, not {list(expected[name])}"
            )
    if absent := sorted(set(expected) - set(adapter.tensors)):
        raise ModelLoadFailed(f"the adapter {adapter.folder} is incomplete: {shown(absent[0])} is missing")


def _read_config(folder: Path) -> Mapping[str, Any]:
    if not folder.is_dir():
        raise ModelLoadFailed(f"there is no folder {folder} with an adapter")
    try:
        config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadFailed(f"{folder} has no {CONFIG_NAME}: it is not an adapter") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadFailed(f"{folder / CONFIG_NAME} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ModelLoadFailed(f"{folder / CONFIG_NAME} is no JSON object")
    return cast(dict[str, Any], config)


def _read_weights(folder: Path) -> Mapping[str, StoredTensor]:
    if not (folder / WEIGHTS_NAME).is_file():
        hint = f"; {_PEFT_NAME} is another library's format" if (folder / _PEFT_NAME).is_file() else ""
        raise ModelLoadFailed(f"{folder} has no {WEIGHTS_NAME}, as mlx-lm writes it{hint}")
    return read_tensors(folder / WEIGHTS_NAME)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in cast("list[object]", value))
