"""A look at a model folder without reading its weights: whether loading it can be tried, and what it takes.

The config names a model type that mlx-lm has code for, the weight files are as long as their headers say, and an
adapter over them is whole. A header is a few kilobytes; nothing is brought to the device.
"""

from collections.abc import Iterable
from pathlib import Path

from adapters.mlx.adapter_folder import read_adapter
from adapters.mlx.device import on_cpu
from adapters.mlx.generation_config import advised_sampling
from adapters.mlx.loader import ITEM_BYTES, read_config
from adapters.mlx.model_types import knows_model_type
from adapters.mlx.safetensors_file import StoredTensor, read_tensors
from application.ports.model_repository import ModelPreview
from domain.errors import ModelLoadFailed
from domain.model_card import LoadOptions, ModelSource

_QUANTISED_KEYS = ("quantization", "quantization_config")


def check_source(source: ModelSource, options: LoadOptions) -> ModelPreview:
    """A ModelCheck."""
    folder = Path(source.path)
    config = read_config(folder)
    if not knows_model_type(config["model_type"]):
        raise ModelLoadFailed(f"mlx-lm has no model type {config['model_type']!r}")
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ModelLoadFailed(f"{folder} has no weights (model*.safetensors)")
    is_quantised = any(config.get(key) for key in _QUANTISED_KEYS)
    item_bytes = _item_bytes(options.dtype, is_quantised=is_quantised)
    weight_bytes = sum(_held_bytes(read_tensors(path).values(), item_bytes) for path in files)
    if source.adapter:
        weight_bytes += read_adapter(Path(source.adapter)).num_bytes
    return ModelPreview(weight_bytes, advised_sampling(folder))


def _item_bytes(dtype: str, *, is_quantised: bool) -> int | None:
    """Bytes of a floating value as it will be held; None where it stays as it is stored."""
    if dtype == "auto":
        return 4 if on_cpu() and not is_quantised else None
    return ITEM_BYTES.get(dtype)


def _held_bytes(tensors: Iterable[StoredTensor], item_bytes: int | None) -> int:
    return sum(
        tensor.num_values * item_bytes if item_bytes is not None and tensor.is_floating else tensor.num_bytes
        for tensor in tensors
    )


__all__ = ("check_source",)
