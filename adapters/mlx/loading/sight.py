"""The sight of a model, loaded beside its network: tower and trunk are built from the same files."""

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.loading.network import cast_network, pieces_of
from adapters.mlx.runtime.arrays import evaluate, parameters
from adapters.mlx.speculation.heads import HeadNetwork, text_model, trunk_of
from adapters.mlx.vision.families import Family
from adapters.mlx.vision.library import missing
from adapters.mlx.vision.passes import Sight, prepare_trunk
from adapters.mlx.vision.tower import Tower, load_tower
from application.ports.vision import ImageProcessor
from domain.errors import ModelLoadFailed
from domain.memory.estimate import image_cost_of_config


def load_sight(
    folder: Path, config: Mapping[str, Any], network: Any, dtype: str, processor: ImageProcessor
) -> Generator[None, None, Sight]:
    """Loads and evaluates the tower of a network, piece by piece, and prepares the network for images. Raises
    ModelLoadFailed."""
    family = Family.of_config(config)
    try:
        tower = open_tower(folder, config, network, dtype)
        yield
        for piece in pieces_of(parameters(tower.module)):
            evaluate(piece)
            yield
        prepare_trunk(trunk_of(network), family, config)
        if isinstance(network, HeadNetwork):
            prepare_trunk(network.head.layer, family, config)
    except ModelLoadFailed:
        raise
    except Exception as error:
        raise ModelLoadFailed(f"images cannot be computed by {folder}: {str(error) or type(error).__name__}") from error
    return Sight(tower, processor, family, image_cost_of_config(config, tower.dtype_bytes))


def open_tower(folder: Path, config: Mapping[str, Any], network: Any, dtype: str) -> Tower:
    """The tower of a network; no weight is read yet. Raises ModelLoadFailed, and anything."""
    if reason := missing():
        raise ModelLoadFailed(reason)
    weights: dict[str, mx.array] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        weights.update(cast("dict[str, mx.array]", mx.load(str(path))))
    embedded = text_model(trunk_of(network)).model.embed_tokens(mx.zeros((1, 1), mx.int32))
    tower = load_tower(folder, config, weights, embedded.dtype)
    cast_network(tower.module, dtype)
    return tower
