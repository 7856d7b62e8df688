"""A model before it is loaded: what it will need of memory, from its configuration and the headers of its files.

The network is put together as for loading, by mlx-lm's own code, and stays as it is then: names and shapes, without a
weight read or computed. Where the weights themselves are missing the configuration alone decides.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.caches.layout import layout_of, new_caches
from adapters.mlx.loading.assembly import context_length_of
from adapters.mlx.loading.loader import cast_network, open_folder, read_config
from adapters.mlx.memory.memory_shape import shape_of_network
from adapters.mlx.runtime.file_limit import mlx_lm_module
from domain.errors import ModelLoadFailed
from domain.models.model_card import LoadOptions, ModelSource
from domain.scheduling.memory_plan import PlannedModel

_LEAST_QUANTISED = 32
"""The smallest group: a matrix whose rows do not divide by the group's size stays as it is."""


def plan_model(source: ModelSource, options: LoadOptions) -> PlannedModel:
    """A ModelPlanner. On a thread of its own, since one that has touched MLX must clear its streams before it ends, and
    is of no use to MLX afterwards."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_plan_and_leave, Path(source.path), options.dtype).result()


def _plan_and_leave(folder: Path, dtype: str) -> PlannedModel:
    try:
        return _plan(folder, dtype)
    finally:
        mx.clear_streams()


def _plan(folder: Path, dtype: str) -> PlannedModel:
    config = read_config(folder)
    has_weights = any(folder.glob("model*.safetensors"))
    try:
        if has_weights:
            network, config = open_folder(folder)
            cast_network(network, dtype)
        else:
            network = network_of(config, dtype)
        layout = layout_of(new_caches(network))
        context_length = context_length_of(config)
        shape = shape_of_network(network, layout, config)
    except Exception as error:
        raise ModelLoadFailed(f"{folder} cannot be planned for: {str(error) or type(error).__name__}") from error
    return PlannedModel(str(config["model_type"]), context_length, layout, shape, has_weights)


def network_of(config: Mapping[str, Any], dtype: str) -> Any:
    """The network of a configuration alone, never evaluated. Raises anything."""
    model, arguments = mlx_lm_module("utils")._get_classes(config)
    network = model(arguments.from_dict(config))
    network.eval()
    quantisation = config.get("quantization")
    if isinstance(quantisation, Mapping):
        _quantise(network, cast(Mapping[str, Any], quantisation))
    cast_network(network, dtype)
    return network


def _quantise(network: Any, quantisation: Mapping[str, Any]) -> None:
    size = int(quantisation.get("group_size", _LEAST_QUANTISED))

    def wanted(path: str, module: Any) -> Any:
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % size:
            return False
        return quantisation.get(path, True)

    mlx_lm_module("utils").nn.quantize(
        network,
        group_size=size,
        bits=int(quantisation.get("bits", 4)),
        mode=quantisation.get("mode", "affine"),
        class_predicate=wanted,
    )
