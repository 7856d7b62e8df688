"""The files of a model, checked before a weight is read.

All files are data of unknown origin, and no code in them is run: a config.json that names a Python file is refused. Of
a safetensors file (u64 header length, header, data) only the header is read and compared with the file's length, so
that a file that is cut short is recognised. Every error is a ModelLoadFailed whose message names the file.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.loading.trunks import why_unknown
from adapters.mlx.runtime.device import on_cpu
from adapters.mlx.runtime.json_files import MAX_COUNT, is_count, is_number, read_entries
from adapters.mlx.vlm.library import missing
from domain.errors import InvalidRequest, ModelLoadFailed
from domain.models.weight_files import INDEX, WeightFiles, weight_files
from domain.printable import printable
from domain.request.sampling import SamplingDefaults

MAX_MODULES = 2_048
"""The most layers, experts and the like that a configuration may ask for: more than any model has, and few enough to
build in seconds. Modules are built before a weight is read."""

_COUNTED = re.compile(r"(^|_)n?_?(layers?|blocks|experts|stages|codebooks|depths?)$")
"""Names of settings that say how many modules there are."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one value by the names of LoadOptions.dtype."""

_QUANTISED_KEYS = ("quantization", "quantization_config")
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_EXPERTS = re.compile(r"(^|\.)(experts|switch_mlp|switch_glu)\.")
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100 * 2**20
_MAX_AXES = 64


def is_expert(name: str) -> bool:
    """Returns whether a tensor is of a mixture's experts, of which a token uses a few; shared ones are not counted."""
    return _EXPERTS.search(name) is not None


def checked_weights(folder: Path, dtype: str, *, is_encoder: bool = False) -> tuple[int, int]:
    """Returns the bytes of a folder's weights once they are loaded, and of the experts among them."""
    config = read_config(folder)
    why = why_unknown(config)
    if is_encoder:
        why = f"encoders are computed by mlx-vlm: {reason}" if (reason := missing()) else ""
    if why:
        raise ModelLoadFailed(why)
    tensors = network_tensors(folder)
    is_quantised = any(config.get(key) for key in _QUANTISED_KEYS)
    item_bytes = ITEM_BYTES.get(dtype)
    if dtype == "auto":
        item_bytes = 4 if on_cpu() and not is_quantised else None
    experts = (tensor for name, tensor in tensors.items() if is_expert(name))
    return _held_bytes(tensors.values(), item_bytes), _held_bytes(experts, item_bytes)


# ---- config.json and generation_config.json ------------------------------------------------------------------------


def read_config(folder: Path) -> Mapping[str, Any]:
    """Returns config.json unchanged; its model_type is a string. Raises ModelLoadFailed."""
    if not folder.is_dir():
        raise ModelLoadFailed(f"{folder} is not a folder")
    path = folder / "config.json"
    config = read_object(path, f"{folder} has no config.json, so it is not a model folder")
    if not isinstance(config.get("model_type"), str):
        raise ModelLoadFailed(f"{path} has no model_type")
    if (own := config.get("model_file")) is not None:
        raise ModelLoadFailed(
            f"{path} requests the execution of a Python file (model_file: {str(own)[:80]!r}), which Cairn never does"
        )
    try:
        excess = next(_excesses(config), None)
    except RecursionError:
        raise ModelLoadFailed(f"{path} cannot be read: it is nested too deeply") from None
    if excess is not None:
        raise ModelLoadFailed(f"{path}: {excess}, but at most {MAX_MODULES} are built")
    return config


def advised_sampling(folder: Path) -> SamplingDefaults:
    """The sampling settings that generation_config.json recommends; none if it cannot be read or has `do_sample:
    false`. A value that no request could have (null, a text, a `top_p` of 2) is left out."""
    config = read_entries(folder / "generation_config.json")
    advised = SamplingDefaults()
    for key in _SAMPLING_KEYS if config.get("do_sample") is not False else ():
        advised = _usable(key, config.get(key)).over(advised)
    return advised


def _excesses(config: object) -> Iterator[str]:
    """Counts above MAX_MODULES, at any depth, as `name is number`."""
    if isinstance(config, list):
        for value in cast(list[object], config):
            yield from _excesses(value)
    if isinstance(config, dict):
        for name, value in cast(dict[str, object], config).items():
            if isinstance(value, int | float) and value > MAX_MODULES and _COUNTED.search(name):
                yield f"{printable(name)} is {value}"
            yield from _excesses(value)


def _usable(key: str, value: object) -> SamplingDefaults:
    if not is_number(value) or (key == "top_k" and not isinstance(value, int)):
        return SamplingDefaults()
    try:
        return SamplingDefaults(**{key: value})  # type: ignore[arg-type]
    except InvalidRequest:
        return SamplingDefaults()


def read_object(path: Path, if_absent: str) -> Mapping[str, Any]:
    """Returns the JSON object of a file. Raises ModelLoadFailed with `if_absent` for no file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadFailed(if_absent) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadFailed(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ModelLoadFailed(f"{path} must hold a JSON object")
    return cast(dict[str, Any], found)


# ---- safetensors ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor by its header. `dtype`: as safetensors writes it, such as `BF16`; `end`: of its bytes, counted from the
    start of the data."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    end: int

    @property
    def is_floating(self) -> bool:
        """True if a cast changes its width; the 8-bit formats belong to quantised weights."""
        return self.dtype in {"F64", "F32", "F16", "BF16"}


def read_tensors(path: Path) -> Mapping[str, StoredTensor]:
    """Returns every tensor by name. Raises ModelLoadFailed unless the file is a whole safetensors file."""
    try:
        with path.open("rb") as file:
            num_header = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            size_bytes = path.stat().st_size
            if num_header > min(size_bytes, _MAX_HEADER_BYTES):
                raise ModelLoadFailed(
                    f"{path} could not be loaded: it is truncated or not a safetensors file; download it again"
                )
            header = json.loads(file.read(num_header))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadFailed(f"{path} could not be loaded: {error}") from None
    if not isinstance(header, dict):
        raise ModelLoadFailed(f"{path} could not be loaded: it is not a safetensors file")
    found: dict[str, StoredTensor] = {}
    for name, entry in cast(dict[str, Any], header).items():
        if name == "__metadata__":
            continue
        tensor = _tensor(entry)
        if tensor is None:
            raise ModelLoadFailed(f"{path} could not be loaded: its header's entry {printable(name)} is not a tensor")
        found[name] = tensor
    end = max((tensor.end for tensor in found.values()), default=0) + _LENGTH_BYTES + num_header
    if end > size_bytes:
        raise ModelLoadFailed(f"{path} could not be loaded: it is truncated ({size_bytes} of {end} bytes)")
    return found


def _tensor(entry: object) -> StoredTensor | None:
    """A header's entry as a tensor; None if it is invalid."""
    fields = cast(dict[str, object], entry) if isinstance(entry, dict) else {}
    offsets, shape = _sizes(fields.get("data_offsets")), _sizes(fields.get("shape"))
    if offsets is None or len(offsets) != 2 or shape is None or len(shape) > _MAX_AXES or prod(shape) > MAX_COUNT:
        return None
    begin, end = offsets
    return StoredTensor(str(fields.get("dtype", "")), shape, max(0, end - begin), end)


def _sizes(value: object) -> tuple[int, ...] | None:
    sizes = cast(list[object], value) if isinstance(value, list) else [None]
    found = tuple(size for size in sizes if is_count(size))
    return found if len(found) == len(sizes) else None


def _held_bytes(tensors: Iterable[StoredTensor], item_bytes: int | None) -> int:
    """`item_bytes`: width of a floating value once loaded; None if it is loaded as it is stored."""
    return sum(
        prod(tensor.shape) * item_bytes if item_bytes is not None and tensor.is_floating else tensor.num_bytes
        for tensor in tensors
    )


# ---- weights -------------------------------------------------------------------------------------------------------


def weights_of(folder: Path) -> WeightFiles:
    """The names of a folder's weight files. Raises ModelLoadFailed."""
    if not folder.is_dir():
        raise ModelLoadFailed(f"{folder} is not a folder")
    try:
        names = [path.name for path in folder.iterdir() if path.is_file()]
        index = (folder / INDEX).read_text(encoding="utf-8", errors="replace") if INDEX in names else None
    except OSError as error:
        raise ModelLoadFailed(f"{folder} cannot be read: {error}") from None
    found = weight_files(names, index)
    if found.missing:
        raise ModelLoadFailed(f"{folder} could not be loaded: {found.missing}")
    return found


def network_tensors(folder: Path) -> Mapping[str, StoredTensor]:
    """Every tensor of the network's files by name. Raises ModelLoadFailed, also for a name with two shapes."""
    found: dict[str, StoredTensor] = {}
    for name in weights_of(folder).names:
        for key, tensor in read_tensors(folder / name).items():
            if key in found and found[key].shape != tensor.shape:
                raise ModelLoadFailed(
                    f"{folder} could not be loaded: {printable(key)} is in two of its weight files with different"
                    f" shapes; remove the files of the other conversion ({name} is one of the two)"
                )
            found[key] = tensor
    return found


def load_weights(folder: Path, *, heads: bool = False) -> dict[str, mx.array]:
    """Every tensor of the network's files by name, not read yet. `heads`: of the files of heads beside them instead."""
    files, found = weights_of(folder), dict[str, mx.array]()
    for name in files.heads if heads else files.names:
        found |= cast("dict[str, mx.array]", mx.load(str(folder / name)))
    return found
