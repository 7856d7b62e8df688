"""A network in memory: built by mlx-lm from a model folder in Hugging Face format, adapted by LoRA, cast, evaluated.

A network can also be built without reading a weight, as names and shapes (`plan`). Every
failure is a ModelLoadFailed that says what to do. No code of a folder is run: mlx-lm loads safetensors only, and the
Python file that a config.json may name is kept from it (older versions run it: CVE-2026-5843).
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_unflatten

from adapters.mlx.loading.drafters import with_head
from adapters.mlx.loading.files import ADAPTER_WEIGHTS, AdapterFiles, read_adapter, read_config, read_tensors
from adapters.mlx.loading.trunks import classes_of
from adapters.mlx.loading.weights_digest import Digests
from adapters.mlx.runtime.arrays import evaluate
from adapters.mlx.runtime.arrays import parameters as named_parameters
from adapters.mlx.runtime.device import on_cpu
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from adapters.mlx.speculation.drafting import DraftModelNetwork
from application.ports.compute import LoadReport, unreported
from domain.errors import ModelLoadFailed
from domain.memory.estimate import number
from domain.models.capability import PLAIN_USE, Capability, ModelUse
from domain.models.load_progress import LoadPhase
from domain.models.model_card import LoadOptions
from domain.printable import printable
from domain.speculation.drafter import Drafter, SpeculationMode

NO_OWN_CODE: Mapping[str, Any] = {"model_file": None}
"""Overrides that mlx-lm applies to config.json itself, so that a file that changes after the check is not run
either."""

PIECE_BYTES = 64 * 2**20
"""Bytes of weights evaluated at once: some 20 ms of reading from a fast disk."""

DEFAULT_CONTEXT_LENGTH = 4096
"""The context length of the few configurations without a limit."""

_CASTS = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}

_CONTEXT_KEYS = (
    *("max_position_embeddings", "n_positions", "max_sequence_length", "model_max_length", "max_seq_len"),
    *("seq_length", "n_ctx", "max_context_length", "sequence_len"),
)

_ADAPTER_LEAVES = frozenset({"lora_a", "lora_b", "m"})
"""mlx-lm's names of the arrays that an adapter adds to a layer; `m` is DoRA's."""

_LEAST_QUANTISED = 32
"""The smallest group of quantised values: a matrix whose rows do not divide by the group's size is not quantised."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model by its files. `config`: config.json; `digest`: of the weights' content, a draft model's included;
    `adapter_digest`: of the adapter's, empty without one. `drafter_note`: why a head in the files is not used."""

    config: Mapping[str, Any]
    eos_token_ids: frozenset[int] = frozenset()
    digest: bytes = b""
    adapter_digest: bytes = b""
    speculation: SpeculationMode = SpeculationMode.AUTO
    drafter_note: str = ""


def load_folder(
    folder: Path,
    options: LoadOptions,
    digests: Digests,
    adapter: Path | None = None,
    use: ModelUse = PLAIN_USE,
    report: LoadReport = unreported,
) -> Generator[None, None, tuple[Any, ModelFacts]]:
    """Loads and evaluates a network with its drafter, piece by piece. `adapter`: a folder with a LoRA adapter;
    `digests`: of all of them. `use`: what it is for.

    The dtype `auto` is that of the files, except that unquantised weights become float32 on a CPU, whose half-precision
    kernels are several times slower. Raises ModelLoadFailed.
    """
    report(LoadPhase.LOADING, 0, 0)
    config = read_config(folder)
    try:
        network, full_config = open_network(folder, use)
        yield
        if adapter is not None:
            apply_adapter(network, read_adapter(adapter))
        note = ""
        if options.draft:
            cast_network(network, options.dtype)
            network = DraftModelNetwork(network, _draft_model(Path(options.draft), options.dtype))
        else:
            if options.speculation.allows(Drafter.HEAD):
                network, note = with_head(network, folder, full_config)
            cast_network(network, options.dtype)
        weights, done = named_parameters(network), 0
        total = sum(array.nbytes for _, array in weights)
        report(LoadPhase.READING, done, total)
        for piece in pieces_of(weights):
            yield
            evaluate(piece)
            done += sum(array.nbytes for array in piece)
            report(LoadPhase.READING, done, total)
    except Exception as error:
        raise ModelLoadFailed(_explain(folder, config, error)) from error
    facts = ModelFacts(full_config, eos_ids(full_config), digests.weights, digests.adapter, options.speculation, note)
    return network, facts


def _draft_model(folder: Path, dtype: str) -> Any:
    config = read_config(folder)
    try:
        network, _ = open_network(folder)
        cast_network(network, dtype)
    except Exception as error:
        raise ModelLoadFailed(f"the draft model: {_explain(folder, config, error)}") from error
    return network


def eos_ids(config: Mapping[str, Any]) -> frozenset[int]:
    """End-of-sequence ids; mlx-lm has already let generation_config.json override config.json."""
    text = config.get("text_config")
    found = config.get("eos_token_id")
    if found is None and isinstance(text, Mapping):
        found = cast(Mapping[str, Any], text).get("eos_token_id")
    if isinstance(found, int):
        return frozenset({found})
    return frozenset(id for id in cast(list[object], found or []) if isinstance(id, int))


def context_length_of(config: Mapping[str, Any]) -> int:
    """Tokens, prompt and completion together."""
    return number(config, *_CONTEXT_KEYS) or DEFAULT_CONTEXT_LENGTH


def open_network(folder: Path, use: ModelUse = PLAIN_USE) -> tuple[Any, dict[str, Any]]:
    """The network with its full configuration; no weight is read yet. Raises anything."""
    own, names = NO_OWN_CODE, set[str]()
    if use.is_pooled:
        names.update(name for path in folder.glob("model*.safetensors") for name in read_tensors(path))
    if Capability.EMBED in use.capabilities and not any("lm_head." in name for name in names):
        own = {**NO_OWN_CODE, "tie_word_embeddings": True}  # nothing needs the output matrix
    classes = _classes_of_bare_trunks if "embed_tokens.weight" in names else classes_of
    load = mlx_lm_module("utils").load_model
    network, config = load(folder, lazy=True, model_config=own, get_model_classes=classes)
    return network, config


def _classes_of_bare_trunks(config: dict[str, Any]) -> tuple[Callable[[Any], Any], Any]:
    """For weights that were saved without `model.`, which embedding models often are."""
    model, arguments = classes_of(config)

    def make(known: Any) -> Any:
        network = model(known)
        sanitize: Callable[[dict[str, Any]], Any] = getattr(network, "sanitize", dict)

        def sanitize_prefixed(weights: dict[str, Any]) -> Any:
            return sanitize({name if "lm_head." in name else f"model.{name}": weights[name] for name in weights})

        network.sanitize = sanitize_prefixed
        return network

    return make, arguments


def pieces_of(parameters: Iterable[tuple[str, mx.array]]) -> Iterator[list[mx.array]]:
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


# ---- casts and adapters --------------------------------------------------------------------------------------------


def cast_network(network: Any, dtype: str) -> None:
    """Casts floating parameters lazily, except those that the model keeps in a precision of their own."""
    if dtype == "auto":
        is_quantised = any(hasattr(module, "bits") for _, module in network.named_modules())
        if is_quantised or not on_cpu():
            return
        dtype = "float32"
    if dtype not in _CASTS:
        raise ValueError(f"dtype must be one of auto, {', '.join(_CASTS)}, not {dtype!r}")
    may_cast = cast(Callable[[str], bool] | None, getattr(network, "cast_predicate", None))
    changed = [
        (name, array.astype(_CASTS[dtype]))
        for name, array in named_parameters(network)
        if mx.issubdtype(array.dtype, mx.floating) and (may_cast is None or may_cast(name))
    ]
    network.update(tree_unflatten(changed))


def apply_adapter(network: Any, adapter: AdapterFiles) -> None:
    """Wraps a network's layers in those of an adapter. Raises ModelLoadFailed unless every tensor of the file belongs
    to a layer of the adapter's configuration, with its exact shape, and none is missing: part of an adapter would be
    another model, unnoticed."""
    mlx_lm_module("tuner.utils").linear_to_lora_layers(
        network, adapter.num_layers, adapter.parameters, use_dora=adapter.is_dora
    )
    expected = {name: array.shape for name, array in named_parameters(network)}
    expected = {name: shape for name, shape in expected.items() if name.rpartition(".")[2] in _ADAPTER_LEAVES}
    misfit = f"the adapter {adapter.folder} does not belong to this model:"
    for name, tensor in adapter.tensors.items():
        if name not in expected:
            raise ModelLoadFailed(f"{misfit} it has no layer for {printable(name)}")
        if tuple(expected[name]) != tensor.shape:
            shapes = f"{list(tensor.shape)}, not {list(expected[name])}"
            raise ModelLoadFailed(f"{misfit} {printable(name)} has the shape {shapes}")
    if absent := sorted(set(expected) - set(adapter.tensors)):
        raise ModelLoadFailed(f"the adapter {adapter.folder} is incomplete: {printable(absent[0])} is missing")
    weights = cast(dict[str, mx.array], mx.load(str(adapter.folder / ADAPTER_WEIGHTS)))
    network.load_weights(list(weights.items()), strict=False)
    network.eval()


# ---- a network as shapes only --------------------------------------------------------------------------------------


def network_of(config: Mapping[str, Any], dtype: str) -> Any:
    """The network of a configuration alone, never evaluated. Raises anything."""
    model, arguments = classes_of(dict(config))
    network = model(arguments.from_dict(config))
    network.eval()
    quantisation = config.get("quantization")
    if isinstance(quantisation, Mapping):
        _quantise(network, cast(Mapping[str, Any], quantisation))
    cast_network(network, dtype)
    return network


def _quantise(network: Any, quantisation: Mapping[str, Any]) -> None:
    size = int(quantisation.get("group_size", _LEAST_QUANTISED))

    def wanted(path: str, module: Any) -> Any:
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % size:
            return False
        return quantisation.get(path, True)

    mlx_lm_module("utils").nn.quantize(
        network,
        group_size=size,
        bits=int(quantisation.get("bits", 4)),
        mode=quantisation.get("mode", "affine"),
        class_predicate=wanted,
    )
