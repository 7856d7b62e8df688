"""The vision encoder of a model, loaded beside its network: tower and trunk are built from the same files."""

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from adapters.mlx.loading.files import load_weights
from adapters.mlx.loading.network import cast_network, pieces_of
from adapters.mlx.runtime.arrays import evaluate, parameters
from adapters.mlx.speculation.heads import HeadNetwork, text_model, trunk_of
from adapters.mlx.vision.passes import prepare_trunk
from adapters.mlx.vision.tower import VisionEncoder, build_tower
from domain.errors import ModelLoadFailed


def load_vision(
    folder: Path, config: Mapping[str, Any], network: Any, dtype: str
) -> Generator[None, None, VisionEncoder]:
    """Loads and evaluates the tower of a network, piece by piece, and prepares the network for images. Raises
    ModelLoadFailed."""
    vision = open_vision(folder, config, network, dtype)
    yield
    for piece in pieces_of(parameters(vision.module)):
        evaluate(piece)
        yield
    prepare_trunk(trunk_of(network), vision.scheme)
    if isinstance(network, HeadNetwork):
        prepare_trunk(network.head.layer, vision.scheme)
    return vision


def open_vision(folder: Path, config: Mapping[str, Any], network: Any, dtype: str) -> VisionEncoder:
    """The vision encoder of a network; no weight is read yet. Raises ModelLoadFailed."""
    try:
        embedded = text_model(trunk_of(network)).model.embed_tokens(mx.zeros((1, 1), mx.int32))
        module, image_token = build_tower(config, load_weights(folder), embedded.dtype)
        cast_network(module, dtype)
        return VisionEncoder(module, image_token, config)
    except Exception as error:
        raise ModelLoadFailed(f"images cannot be computed by {folder}: {str(error) or type(error).__name__}") from error
