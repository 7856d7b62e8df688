"""What can be told of a model folder without reading its weights: whether loading it can be tried at all.

The config names a model type that mlx-lm has code for, and the weight files are as long as their headers say. A header
is a few kilobytes; nothing is brought to the device.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from adapters.mlx.loader import read_config
from adapters.mlx.model_types import knows_model_type
from domain.errors import ModelLoadFailed
from domain.model_card import ModelSource

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100 * 2**20


def check_source(source: ModelSource) -> None:
    """A ModelCheck."""
    folder = Path(source.path)
    config = read_config(folder)
    if not knows_model_type(config["model_type"]):
        raise ModelLoadFailed(f"mlx-lm has no model type {config['model_type']!r}")
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ModelLoadFailed(f"{folder} has no weights (model*.safetensors)")
    for path in files:
        _check_length(path)


def _check_length(path: Path) -> None:
    """safetensors: u64 header length, header, data; each tensor's end is told from the start of the data."""
    try:
        with path.open("rb") as file:
            num_header = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            size_bytes = path.stat().st_size
            if num_header > min(size_bytes, _MAX_HEADER_BYTES):
                raise ModelLoadFailed(f"{path} could not be loaded: it is cut short, or no safetensors file")
            header = json.loads(file.read(num_header))
    except (OSError, ValueError) as error:
        raise ModelLoadFailed(f"{path} could not be loaded: {error}") from None
    if not isinstance(header, dict):
        raise ModelLoadFailed(f"{path} could not be loaded: it is no safetensors file")
    end = max(_ends(cast(dict[str, Any], header)), default=0) + _LENGTH_BYTES + num_header
    if end > size_bytes:
        raise ModelLoadFailed(f"{path} could not be loaded: it is cut short ({size_bytes} of {end} bytes)")


def _ends(header: Mapping[str, Any]) -> Iterator[int]:
    for name, entry in header.items():
        if name != "__metadata__" and isinstance(entry, dict):
            offsets = cast(dict[str, Any], entry).get("data_offsets")
            if isinstance(offsets, list) and offsets:
                end = cast(list[object], offsets)[-1]
                yield end if isinstance(end, int) else 0


__all__ = ("check_source",)
