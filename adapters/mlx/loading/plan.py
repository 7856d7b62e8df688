"""The memory that a model will need, by its names and shapes: no weight is read."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx

from adapters.mlx.caches.leaves import layout_of, new_caches
from adapters.mlx.loading.drafters import with_head
from adapters.mlx.loading.files import read_config
from adapters.mlx.loading.network import cast_network, context_length_of, network_of, open_network
from adapters.mlx.loading.vision import open_vision
from adapters.mlx.memory import shape_of_network
from domain.errors import ModelLoadFailed
from domain.models.capability import Capability
from domain.models.model_card import LoadOptions, ModelSource
from domain.scheduling.memory_plan import PlannedModel


def plan_model(source: ModelSource, options: LoadOptions) -> PlannedModel:
    """A ModelPlanner. Runs on a thread of its own: one that has used MLX must clear its streams before it ends, and
    cannot use MLX afterwards."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_plan, source, options.dtype).result()


def _plan(source: ModelSource, dtype: str) -> PlannedModel:
    folder = Path(source.path)
    config = read_config(folder)
    has_weights = any(folder.glob("model*.safetensors"))
    try:
        if has_weights:
            network, config = open_network(folder, source.use)
            network, _ = with_head(network, folder, config)
            cast_network(network, dtype)
        else:
            network = network_of(config, dtype)
        layout = layout_of(new_caches(network))
        shape = shape_of_network(network, layout, config)
        if Capability.SEE in source.use.capabilities and has_weights:
            shape = open_vision(folder, config, network, dtype).added_to(shape)
    except Exception as error:
        message = f"the memory of {folder} cannot be planned: {str(error) or type(error).__name__}"
        raise ModelLoadFailed(message) from error
    finally:
        mx.clear_streams()
    return PlannedModel(str(config["model_type"]), context_length_of(config), layout, shape, has_weights)
