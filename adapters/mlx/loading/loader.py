"""A model folder in Hugging Face format to a network in memory, evaluated on the calling thread.

Whatever mlx-lm loads is loaded, quantised weights included. What can be wrong with a folder is said in words a person
can act on: every failure is a ModelLoadFailed. Nothing of a folder is run: weights are safetensors only, and a Python
file that config.json names as the model's code is refused here and kept from mlx-lm, whose older versions run it
(CVE-2026-5843).
"""

import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_unflatten

from adapters.mlx.loading.adapter_folder import lay_adapter
from adapters.mlx.loading.assembly import ModelFacts
from adapters.mlx.loading.weights_digest import Digests
from adapters.mlx.runtime.arrays import evaluate
from adapters.mlx.runtime.arrays import parameters as named_parameters
from adapters.mlx.runtime.device import on_cpu
from adapters.mlx.runtime.file_limit import mlx_lm_module
from domain.errors import ModelLoadFailed
from domain.shown import shown

NO_OWN_CODE = {"model_file": None}
"""Laid over config.json by mlx-lm itself, so that no file which changes after our look at it is run."""

MAX_COUNT = 2_048
"""Layers, experts and the like that a configuration may ask for: more than any model has, and few enough to build in
seconds. Modules are built before a weight is read."""

_COUNTED = re.compile(r"(^|_)n?_?(layers?|blocks|experts|stages|codebooks|depths?)$")
"""Names of settings that say how many modules there are."""

PIECE_BYTES = 64 * 2**20
"""Bytes of weights evaluated at once: some 20 ms of reading from a fast disk."""

_CASTS = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
ITEM_BYTES = {name: dtype.size for name, dtype in _CASTS.items()}


def load_folder(
    folder: Path, dtype: str, digests: Digests, adapter: Path | None = None
) -> Generator[None, None, tuple[Any, ModelFacts]]:
    """Load and evaluate, piece by piece. `dtype`: `auto`, `float32`, `bfloat16` or `float16`; `adapter`: a folder
    with a LoRA adapter; `digests` of both.

    `auto` keeps the dtype of the files, except that unquantised weights become float32 where the device is a Linux
    CPU, whose half-precision kernels are several times slower. Raises ModelLoadFailed.
    """
    config = read_config(folder)
    try:
        network, full_config = open_folder(folder)
        yield
        if adapter is not None:
            lay_adapter(network, adapter)
        cast_network(network, dtype)
        for piece in _pieces(named_parameters(network)):
            yield
            evaluate(piece)
    except Exception as error:
        raise ModelLoadFailed(_explain(folder, config, error)) from error
    return network, ModelFacts(full_config, eos_ids(full_config), digests.weights, digests.adapter)


def _pieces(parameters: Iterable[tuple[str, mx.array]]) -> Iterator[list[mx.array]]:
    """The parameters in their order, in lists of about PIECE_BYTES: reading one takes about as long as a step."""
    piece: list[mx.array] = []
    num_bytes = 0
    for _, array in parameters:
        piece.append(array)
        num_bytes += array.nbytes
        if num_bytes >= PIECE_BYTES:
            yield piece
            piece, num_bytes = [], 0
    if piece:
        yield piece


def open_folder(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The network as its files have it, with its full configuration; no weight is read yet. Raises anything."""
    network, config = mlx_lm_module("utils").load_model(folder, lazy=True, model_config=NO_OWN_CODE)
    return network, config


def cast_network(network: Any, dtype: str) -> None:
    """To what it is computed in, lazily. `dtype` as in `load_folder`."""
    wanted = _wanted_dtype(dtype, is_quantised=_is_quantised(network))
    if wanted is not None:
        _cast(network, wanted)


def eos_ids(config: Mapping[str, Any]) -> frozenset[int]:
    """End-of-sequence ids; mlx-lm has already let generation_config.json override config.json."""
    text = config.get("text_config")
    found = config.get("eos_token_id")
    if found is None and isinstance(text, Mapping):
        found = cast(Mapping[str, Any], text).get("eos_token_id")
    if isinstance(found, int):
        return frozenset({found})
    return frozenset(id for id in cast(list[object], found or []) if isinstance(id, int))


def read_config(folder: Path) -> Mapping[str, Any]:
    """config.json as it is; its model_type is a string. Raises ModelLoadFailed."""
    if not folder.is_dir():
        raise ModelLoadFailed(f"{folder} is not a folder")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        excess = next(_excesses(config), None)
    except FileNotFoundError:
        raise ModelLoadFailed(f"{folder} has no config.json: it is not a model folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadFailed(f"{folder / 'config.json'} cannot be read: {error}") from error
    if not isinstance(config, dict) or not isinstance(cast(dict[str, Any], config).get("model_type"), str):
        raise ModelLoadFailed(f"{folder / 'config.json'} names no model_type")
    found = cast(dict[str, Any], config)
    if (own := found.get("model_file")) is not None:
        raise ModelLoadFailed(
            f"{folder / 'config.json'} has a Python file of its own run (model_file: {str(own)[:80]!r}), which Cairn"
            " never does"
        )
    if excess is not None:
        raise ModelLoadFailed(f"{folder / 'config.json'}: {excess}, and {MAX_COUNT} is the most that is built")
    return found


def _excesses(config: object) -> Iterator[str]:
    """Counts above MAX_COUNT, at any depth, as `name is number`."""
    if isinstance(config, list):
        for value in cast(list[object], config):
            yield from _excesses(value)
    if isinstance(config, dict):
        for name, value in cast(dict[str, object], config).items():
            if isinstance(value, int | float) and value > MAX_COUNT and _COUNTED.search(name):
                yield f"{shown(name)} is {value}"
            yield from _excesses(value)


def _explain(folder: Path, config: Mapping[str, Any], error: Exception) -> str:
    text = str(error)
    if isinstance(error, ModelLoadFailed):
        return error.message
    if isinstance(error, FileNotFoundError) and "safetensors" in text:
        return f"{folder} has no weights (model*.safetensors)"
    if isinstance(error, MemoryError) or "allocate" in text.lower():
        return f"not enough memory for {folder}: {text}"
    if "not supported" in text and "model type" in text.lower():
        return f"mlx-lm has no model type {config['model_type']!r}"
    if isinstance(error, KeyError):
        return f"{folder} is incomplete: {text} is missing"
    return f"{folder} could not be loaded: {text or type(error).__name__}"


def _is_quantised(network: Any) -> bool:
    return any(hasattr(module, "bits") for _, module in network.named_modules())


def _wanted_dtype(dtype: str, *, is_quantised: bool) -> mx.Dtype | None:
    """None keeps what the files have."""
    if dtype != "auto":
        if dtype not in _CASTS:
            raise ValueError(f"{dtype!r} is none of auto, {', '.join(_CASTS)}")
        return _CASTS[dtype]
    return mx.float32 if on_cpu() and not is_quantised else None


def _cast(network: Any, dtype: mx.Dtype) -> None:
    """Cast floating parameters, except those the model keeps in a precision of their own."""
    may_cast = cast(Callable[[str], bool] | None, getattr(network, "cast_predicate", None))
    parameters = named_parameters(network)
    changed = [
        (name, array.astype(dtype))
        for name, array in parameters
        if mx.issubdtype(array.dtype, mx.floating) and (may_cast is None or may_cast(name))
    ]
    network.update(tree_unflatten(changed))
