"""A look at a model folder without reading its weights: whether loading it can be tried, and what it takes.

The config names a model type that mlx-lm has code for, the weight files are as long as their headers say, and an
adapter over them is whole. A header is a few kilobytes; nothing is brought to the device.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from adapters.mlx.loading.adapter_folder import read_adapter
from adapters.mlx.loading.loader import ITEM_BYTES, read_config
from adapters.mlx.loading.model_types import knows_model_type
from adapters.mlx.loading.safetensors_file import StoredTensor, read_tensors
from adapters.mlx.runtime.device import on_cpu
from adapters.mlx.runtime.json_numbers import is_number
from application.ports.model_repository import ModelPreview
from domain.errors import InvalidRequest, ModelLoadFailed
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.sampling import SamplingDefaults

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


_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def advised_sampling(folder: Path) -> SamplingDefaults:
    """The sampling that a model's makers advise in generation_config.json; nothing where no such file can be read.

    The file may hold what no server takes (null, a text, a `top_p` of 0). Such a value is left out and the others
    count. Where it says that nothing is sampled (`do_sample`), it advises nothing.
    """
    try:
        config: object = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return SamplingDefaults()
    values = cast(dict[str, Any], config) if isinstance(config, dict) else {}
    advised = SamplingDefaults()
    for key in _KEYS if values.get("do_sample") is not False else ():
        advised = _usable(key, values.get(key)).over(advised)
    return advised


def _usable(key: str, value: object) -> SamplingDefaults:
    if not is_number(value) or (key == "top_k" and not isinstance(value, int)):
        return SamplingDefaults()
    try:
        return SamplingDefaults(**{key: value})  # type: ignore[arg-type]
    except InvalidRequest:
        return SamplingDefaults()
