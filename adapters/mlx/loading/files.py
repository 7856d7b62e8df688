"""The files of a model and of a LoRA adapter, checked before a weight is read.

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

from adapters.mlx.loading.trunks import knows_model
from adapters.mlx.runtime.device import on_cpu
from adapters.mlx.runtime.json_files import MAX_COUNT, is_count, is_number, read_entries
from application.ports.model_repository import ModelPreview
from domain.errors import InvalidRequest, ModelLoadFailed
from domain.models.model_card import LoadOptions, ModelSource
from domain.printable import printable
from domain.request.sampling import SamplingDefaults

MAX_MODULES = 2_048
"""The most layers, experts and the like that a configuration may ask for: more than any model has, and few enough to
build in seconds. Modules are built before a weight is read."""

_COUNTED = re.compile(r"(^|_)n?_?(layers?|blocks|experts|stages|codebooks|depths?)$")
"""Names of settings that say how many modules there are."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one value by the names of LoadOptions.dtype."""

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapters.safetensors"
MAX_RANK = 4_096
_PEFT_WEIGHTS = "adapter_model.safetensors"

_QUANTISED_KEYS = ("quantization", "quantization_config")
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100 * 2**20
_MAX_AXES = 64


def check_source(source: ModelSource, options: LoadOptions) -> ModelPreview:
    """A ModelCheck: the model type is known to mlx-lm, the weight files are whole, and so are those of an adapter and a
    draft model. Brings nothing to the device."""
    folder = Path(source.path)
    weight_bytes = _checked_weights(folder, options.dtype)
    if source.adapter:
        weight_bytes += read_adapter(Path(source.adapter)).num_bytes
    if options.draft:
        weight_bytes += _checked_weights(Path(options.draft), options.dtype)
    return ModelPreview(weight_bytes, advised_sampling(folder))


def _checked_weights(folder: Path, dtype: str) -> int:
    """Returns the bytes of a folder's weights once they are loaded."""
    config = read_config(folder)
    if not knows_model(config):
        raise ModelLoadFailed(f"mlx-lm has no model type {config['model_type']!r}")
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ModelLoadFailed(f"{folder} has no weights (model*.safetensors)")
    is_quantised = any(config.get(key) for key in _QUANTISED_KEYS)
    item_bytes = ITEM_BYTES.get(dtype)
    if dtype == "auto":
        item_bytes = 4 if on_cpu() and not is_quantised else None
    return sum(_held_bytes(read_tensors(path).values(), item_bytes) for path in files)


# ---- config.json and generation_config.json ------------------------------------------------------------------------


def read_config(folder: Path) -> Mapping[str, Any]:
    """Returns config.json unchanged; its model_type is a string. Raises ModelLoadFailed."""
    if not folder.is_dir():
        raise ModelLoadFailed(f"{folder} is not a folder")
    path = folder / "config.json"
    config = _read_object(path, f"{folder} has no config.json, so it is not a model folder")
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


def _read_object(path: Path, if_absent: str) -> Mapping[str, Any]:
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


# ---- a LoRA adapter in mlx-lm's format -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter by its files. `num_layers`: how many of the last layers it changes. `parameters`: for mlx-lm's
    `linear_to_lora_layers`. `tensors`: by name."""

    folder: Path
    num_layers: int
    is_dora: bool
    parameters: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors.values())


def read_adapter(folder: Path) -> AdapterFiles:
    """Returns an adapter without its weights' bytes. Raises ModelLoadFailed."""
    if not folder.is_dir():
        raise ModelLoadFailed(f"the adapter folder {folder} does not exist")
    where = folder / ADAPTER_CONFIG
    config = _read_object(where, f"{folder} has no {ADAPTER_CONFIG}, so it is not an adapter")
    kind, num_layers = config.get("fine_tune_type", "lora"), config.get("num_layers")
    if kind not in ("lora", "dora"):
        raise ModelLoadFailed(f"{where}: fine_tune_type must be lora or dora, not {str(kind)[:40]!r}")
    if not is_count(num_layers) or not isinstance(config.get("lora_parameters"), dict):
        raise ModelLoadFailed(f"{where} must have num_layers and lora_parameters")
    wanted = cast(dict[str, Any], config["lora_parameters"])
    rank, scale, keys = wanted.get("rank"), wanted.get("scale"), wanted.get("keys")
    if not is_count(rank) or not 1 <= rank <= MAX_RANK:
        raise ModelLoadFailed(f"{where}: lora_parameters.rank must be in 1..{MAX_RANK}")
    if not is_number(scale):
        raise ModelLoadFailed(f"{where}: lora_parameters.scale must be a number")
    if keys is not None and not _are_names(keys):
        raise ModelLoadFailed(f"{where}: lora_parameters.keys must be a list of layer names")
    # Dropout is for training, but mlx-lm needs a value.
    parameters: dict[str, Any] = {"rank": rank, "scale": float(scale), "dropout": 0.0}
    if keys is not None:
        parameters["keys"] = set(cast(list[str], keys))
    return AdapterFiles(folder, num_layers, kind == "dora", parameters, _read_adapter_weights(folder))


def _read_adapter_weights(folder: Path) -> Mapping[str, StoredTensor]:
    if not (folder / ADAPTER_WEIGHTS).is_file():
        hint = f"; {_PEFT_WEIGHTS} is another library's format" if (folder / _PEFT_WEIGHTS).is_file() else ""
        raise ModelLoadFailed(f"{folder} has no {ADAPTER_WEIGHTS}, the format of mlx-lm{hint}")
    return read_tensors(folder / ADAPTER_WEIGHTS)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in cast("list[object]", value))
