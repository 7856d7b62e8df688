"""A safetensors file by its header: u64 header length, header, data. Nothing of the data is read.

What the header says is checked against the length of the file, so that one that is cut short is recognised.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

from adapters.mlx.runtime.json_numbers import MAX_COUNT, is_count
from domain.errors import ModelLoadFailed
from domain.shown import shown

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100 * 2**20
_MAX_AXES = 64


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`dtype`: as safetensors writes it, such as `BF16`; `end`: of its bytes, from the start of the data."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    end: int

    @property
    def num_values(self) -> int:
        return prod(self.shape)

    @property
    def is_floating(self) -> bool:
        """Whether a cast changes its width; the 8-bit formats belong to quantised weights."""
        return self.dtype in {"F64", "F32", "F16", "BF16"}


def read_tensors(path: Path) -> Mapping[str, StoredTensor]:
    """Every tensor by name. Raises ModelLoadFailed for what is no whole safetensors file."""
    try:
        with path.open("rb") as file:
            num_header = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            size_bytes = path.stat().st_size
            if num_header > min(size_bytes, _MAX_HEADER_BYTES):
                raise ModelLoadFailed(f"{path} could not be loaded: it is cut short, or no safetensors file")
            header = json.loads(file.read(num_header))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadFailed(f"{path} could not be loaded: {error}") from None
    if not isinstance(header, dict):
        raise ModelLoadFailed(f"{path} could not be loaded: it is no safetensors file")
    found: dict[str, StoredTensor] = {}
    for name, entry in cast(dict[str, Any], header).items():
        if name == "__metadata__":
            continue
        tensor = _tensor(entry)
        if tensor is None:
            raise ModelLoadFailed(f"{path} could not be loaded: what it says of {shown(name)} is no tensor")
        found[name] = tensor
    end = max((tensor.end for tensor in found.values()), default=0) + _LENGTH_BYTES + num_header
    if end > size_bytes:
        raise ModelLoadFailed(f"{path} could not be loaded: it is cut short ({size_bytes} of {end} bytes)")
    return found


def _tensor(entry: object) -> StoredTensor | None:
    """None for what no reader of safetensors would take."""
    fields = cast(dict[str, object], entry) if isinstance(entry, dict) else {}
    offsets, shape = _sizes(fields.get("data_offsets")), _sizes(fields.get("shape"))
    if offsets is None or len(offsets) != 2 or shape is None or len(shape) > _MAX_AXES or prod(shape) > MAX_COUNT:
        return None
    begin, end = offsets
    return StoredTensor(str(fields.get("dtype", "")), shape, max(0, end - begin), end)


def _sizes(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    sizes = [size for size in cast(list[object], value) if is_count(size)]
    return tuple(sizes) if len(sizes) == len(cast(list[object], value)) else None
