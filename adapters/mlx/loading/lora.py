"""LoRA adapters: read and checked without their weights' bytes, then applied to a network.

mlx-lm's own format (`adapters.safetensors`) is applied by mlx-lm. PEFT's (`adapter_model.safetensors`) is taken where
it is plain LoRA on linear layers: W + scale * B A with scale = lora_alpha / r, or lora_alpha / sqrt(r) for rsLoRA
(Hu et al. 2021, Kalajdzievski 2023); MLX holds the transposes. Everything else is refused by what it has: part of an
adapter would be another model, unnoticed. Every error is a ModelLoadFailed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_unflatten

from adapters.mlx.loading.files import StoredTensor, read_object, read_tensors
from adapters.mlx.runtime.arrays import parameters
from adapters.mlx.runtime.json_files import is_count, is_number
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from domain.errors import ModelLoadFailed
from domain.printable import printable

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapters.safetensors"
PEFT_WEIGHTS = "adapter_model.safetensors"
MAX_RANK = 4_096

_LEAVES = frozenset({"lora_a", "lora_b", "m"})
"""mlx-lm's names of the arrays that an adapter adds to a layer; `m` is DoRA's."""

_PEFT_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
_PEFT_ABSENT = (
    *("rank_pattern", "alpha_pattern", "modules_to_save", "use_dora", "fan_in_fan_out", "lora_bias"),
    *("layer_replication", "trainable_token_indices", "target_parameters", "alora_invocation_tokens"),
)
"""PEFT's settings of adapters that are more than plain LoRA."""
_PEFT_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Beginnings of initialisations that change the weights beneath."""
_OUTER = ("", "language_model.")
"""The beginnings that a library may put before a name of an adapter's."""


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter by its files. `weights`: the name of their file. `num_layers`: how many of the last layers it changes,
    -1 for all. `parameters`: for mlx-lm's `linear_to_lora_layers`. `tensors`: by mlx-lm's names. `is_peft`: they are
    transposed in the file, under PEFT's names, and only the layers that they name are changed."""

    folder: Path
    weights: str
    num_layers: int
    is_dora: bool
    parameters: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    is_peft: bool = False

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors.values())

    def apply(self, network: Any) -> None:
        """Wraps a network's layers in those of the adapter. Raises ModelLoadFailed unless every tensor of the file
        belongs to a layer of the adapter's configuration, with its exact shape, and none is missing."""
        misfit = f"the adapter {self.folder} does not belong to this model:"
        outer = self._wrapped(network, misfit)
        expected = {name: array.shape for name, array in parameters(network)}
        expected = {name: shape for name, shape in expected.items() if name.rpartition(".")[2] in _LEAVES}
        tensors = {outer + name: tensor for name, tensor in self.tensors.items()}
        for name, tensor in tensors.items():
            if name not in expected:
                raise ModelLoadFailed(f"{misfit} it has no layer for {printable(name)}")
            if tuple(expected[name]) != tensor.shape:
                shapes = f"{list(tensor.shape)}, not {list(expected[name])}"
                raise ModelLoadFailed(f"{misfit} {printable(name)} has the shape {shapes}")
        if absent := sorted(set(expected) - set(tensors)):
            raise ModelLoadFailed(f"the adapter {self.folder} is incomplete: {printable(absent[0])} is missing")
        weights = cast(dict[str, mx.array], mx.load(str(self.folder / self.weights)))
        if self.is_peft:
            weights = {_mlx_name(name): array.T for name, array in weights.items()}
        network.load_weights([(outer + name, array) for name, array in weights.items()], strict=False)
        network.eval()

    def _wrapped(self, network: Any, misfit: str) -> str:
        """Returns what stands before the adapter's names in the network."""
        if not self.is_peft:
            apply = mlx_lm_module("tuner.utils").linear_to_lora_layers
            apply(network, self.num_layers, self.parameters, use_dora=self.is_dora)
            known, first = {name for name, _ in parameters(network)}, next(iter(self.tensors), "")
            return next((outer for outer in _OUTER if outer + first in known), "")
        layers, nn = dict(network.named_modules()), mlx_lm_module("utils").nn
        linear = mlx_lm_module("tuner.lora").LoRALinear
        names = sorted({name.rpartition(".")[0] for name in self.tensors})
        outer = next((outer for outer in _OUTER if outer + names[0] in layers), "")
        wrapped: list[tuple[str, Any]] = []
        for name in names:
            layer = layers.get(outer + name)
            if not isinstance(layer, nn.Linear | nn.QuantizedLinear):
                raise ModelLoadFailed(f"{misfit} it has no linear layer {printable(name)}")
            options = {"r": self.parameters["rank"], "scale": self.parameters["scale"], "dropout": 0.0}
            wrapped.append((outer + name, linear.from_base(layer, **options)))
        network.update_modules(tree_unflatten(wrapped))
        return outer


def read_adapter(folder: Path) -> AdapterFiles:
    """Returns an adapter without its weights' bytes. Raises ModelLoadFailed."""
    if not folder.is_dir():
        raise ModelLoadFailed(f"the adapter folder {folder} does not exist")
    where = folder / ADAPTER_CONFIG
    config = read_object(where, f"{folder} has no {ADAPTER_CONFIG}, so it is not an adapter")
    if not (folder / ADAPTER_WEIGHTS).is_file():
        if not (folder / PEFT_WEIGHTS).is_file():
            raise ModelLoadFailed(f"{folder} has neither {ADAPTER_WEIGHTS} nor {PEFT_WEIGHTS}")
        return _read_peft(folder, where, config)
    kind, num_layers = config.get("fine_tune_type", "lora"), config.get("num_layers")
    if kind not in ("lora", "dora"):
        raise ModelLoadFailed(f"{where}: fine_tune_type must be lora or dora, not {str(kind)[:40]!r}")
    if not (is_count(num_layers) or num_layers == -1) or not isinstance(config.get("lora_parameters"), dict):
        raise ModelLoadFailed(f"{where} must have num_layers and lora_parameters")
    wanted = cast(dict[str, Any], config["lora_parameters"])
    keys = wanted.get("keys")
    rank = _rank(where, "lora_parameters.rank", wanted.get("rank"))
    scale = _number(where, "lora_parameters.scale", wanted.get("scale"))
    if keys is not None and not _are_names(keys):
        raise ModelLoadFailed(f"{where}: lora_parameters.keys must be a list of layer names")
    # Dropout is for training, but mlx-lm needs a value.
    known: dict[str, Any] = {"rank": rank, "scale": scale, "dropout": 0.0}
    if keys is not None:
        known["keys"] = set(cast(list[str], keys))
    tensors = read_tensors(folder / ADAPTER_WEIGHTS)
    return AdapterFiles(folder, ADAPTER_WEIGHTS, num_layers, kind == "dora", known, tensors)


def _read_peft(folder: Path, where: Path, config: Mapping[str, Any]) -> AdapterFiles:
    refused = f"{where}: the adapter is more than plain LoRA on linear layers, the only one of PEFT's that is served:"
    if config.get("peft_type") != "LORA":
        raise ModelLoadFailed(f"{refused} its peft_type is {str(config.get('peft_type'))[:40]!r}")
    if config.get("bias", "none") != "none":
        raise ModelLoadFailed(f"{refused} it has bias")
    if found := next((name for name in _PEFT_ABSENT if config.get(name)), ""):
        raise ModelLoadFailed(f"{refused} it has {found}")
    if str(config.get("init_lora_weights")).lower().startswith(_PEFT_CHANGES_BASE):
        raise ModelLoadFailed(f"{refused} init_lora_weights changed the weights of its model")
    rank = _rank(where, "r", config.get("r"))
    alpha = _number(where, "lora_alpha", config.get("lora_alpha"))
    tensors: dict[str, StoredTensor] = {}
    for name, tensor in read_tensors(folder / PEFT_WEIGHTS).items():
        if not _PEFT_NAME.fullmatch(name) or len(tensor.shape) != 2:
            raise ModelLoadFailed(f"{refused} it has the tensor {printable(name)}")
        if _mlx_name(name) in tensors:
            raise ModelLoadFailed(f"{refused} it has {printable(_mlx_name(name))} twice, as the parts of two adapters")
        tensors[_mlx_name(name)] = replace(tensor, shape=tensor.shape[::-1])
    if not tensors:
        raise ModelLoadFailed(f"{folder / PEFT_WEIGHTS} has no tensors")
    scale = alpha / (sqrt(rank) if config.get("use_rslora") is True else rank)
    return AdapterFiles(folder, PEFT_WEIGHTS, -1, False, {"rank": rank, "scale": scale}, tensors, is_peft=True)


def _mlx_name(name: str) -> str:
    """The name of a tensor of PEFT's in mlx-lm's form."""
    return _PEFT_NAME.sub(lambda found: f"{found[1]}.lora_{found[2].lower()}", name)


def _rank(where: Path, name: str, rank: object) -> int:
    if not is_count(rank) or not 1 <= rank <= MAX_RANK:
        raise ModelLoadFailed(f"{where}: {name} must be in 1..{MAX_RANK}")
    return rank


def _number(where: Path, name: str, value: object) -> float:
    if not is_number(value):
        raise ModelLoadFailed(f"{where}: {name} must be a number")
    return float(value)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in cast("list[object]", value))
