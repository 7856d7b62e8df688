"""What is known of a model before it is loaded, by names and shapes: its faults and its memory. No weight is read."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx

from adapters.mlx.caches.leaves import layout_of, new_caches
from adapters.mlx.loading.context import context_of
from adapters.mlx.loading.drafters import with_head
from adapters.mlx.loading.encoder import encoder_context
from adapters.mlx.loading.files import advised_sampling, checked_weights, is_expert, read_config
from adapters.mlx.loading.lora import read_adapter
from adapters.mlx.loading.network import cast_network, keep_quantised, network_of, open_network
from adapters.mlx.loading.vision import open_vision
from adapters.mlx.memory import shape_of_network
from adapters.mlx.runtime.arrays import parameters
from application.ports.model_repository import ModelPreview
from domain.errors import ModelLoadFailed
from domain.models.capability import Capability
from domain.models.model_card import LoadOptions, ModelSource
from domain.models.weight_files import may_be_weights
from domain.scheduling.memory_plan import PlannedModel


def check_source(source: ModelSource, options: LoadOptions) -> ModelPreview:
    """A ModelCheck: the model type is known to mlx-lm, the weight files are whole, and so are those of an adapter and a
    draft model. Brings nothing to the device."""
    folder = Path(source.path)
    weight_bytes, expert_bytes = checked_weights(folder, options.dtype, is_encoder=source.use.is_encoder)
    if source.adapter and source.use.is_encoder:
        raise ModelLoadFailed(f"{source.id} is an encoder, which takes no adapter: leave adapter out of its table")
    if source.adapter:
        weight_bytes += read_adapter(Path(source.adapter)).num_bytes
    if options.draft:
        weight_bytes += checked_weights(Path(options.draft), options.dtype)[0]
    return ModelPreview(weight_bytes, advised_sampling(folder), expert_bytes)


def plan_model(source: ModelSource, options: LoadOptions) -> PlannedModel:
    """A ModelPlanner. Runs on a thread of its own: one that has used MLX must clear its streams before it ends, and
    cannot use MLX afterwards."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_plan, source, options).result()


def _plan(source: ModelSource, options: LoadOptions) -> PlannedModel:
    folder, dtype = Path(source.path), options.dtype
    config = read_config(folder)
    has_weights = any(may_be_weights(path.name) for path in folder.iterdir())
    try:
        if has_weights:
            network, config = open_network(folder, source.use)
            network = network if source.use.is_pooled else with_head(network, folder, config)[0]
            cast_network(network, dtype)
        else:
            network = network_of(config, dtype)
        if options.kv_bits is not None and not source.use.is_encoder:
            keep_quantised(network, config, options.kv_bits)
        layout = layout_of(new_caches(network))
        expert_bytes = sum(array.nbytes for name, array in parameters(network) if is_expert(name))
        shape = shape_of_network(network, layout, config)
        context = encoder_context(source.use) or context_of(config, layout, dict(parameters(network)), folder)
        if Capability.SEE in source.use.capabilities and has_weights:
            shape = open_vision(folder, config, network, dtype).added_to(shape)
    except Exception as error:
        message = f"the memory of {folder} cannot be planned: {str(error) or type(error).__name__}"
        raise ModelLoadFailed(message) from error
    finally:
        mx.clear_streams()
    return PlannedModel(str(config["model_type"]), context, layout, shape, has_weights, expert_bytes)
