"""A network in memory: built by mlx-lm from a model folder in Hugging Face format, adapted by LoRA, cast, evaluated.

A network can also be built without reading a weight, as names and shapes (`plan`). Every
failure is a ModelLoadFailed that says what to do. No code of a folder is run: mlx-lm loads safetensors only, and the
Python file that a config.json may name is kept from it (older versions run it: CVE-2026-5843).
"""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import mlx.core as mx
import xxhash
from mlx.utils import tree_unflatten

from adapters.mlx.caches.leaves import quantise, quantised_layers
from adapters.mlx.loading.drafters import with_head
from adapters.mlx.loading.files import (
    network_tensors,
    read_config,
    weights_of,
)
from adapters.mlx.loading.lora import read_adapter
from adapters.mlx.loading.trunks import classes_of
from adapters.mlx.loading.weight_names import HEAD, cleaner
from adapters.mlx.loading.weights_digest import Digests
from adapters.mlx.quantised_attention import num_dequantised
from adapters.mlx.runtime.arrays import evaluate
from adapters.mlx.runtime.arrays import parameters as named_parameters
from adapters.mlx.runtime.device import on_cpu
from adapters.mlx.runtime.json_files import read_entries
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from adapters.mlx.speculation.drafting import DraftModelNetwork, family_of
from adapters.mlx.speculation.heads import trunk_of
from adapters.mlx.vlm.encoder import encoder_classes
from application.ports.compute import LoadReport, unreported
from domain.errors import ModelLoadFailed
from domain.memory.estimate import has_latents, nested_config
from domain.memory.kv_bits import KVBits
from domain.models.capability import PLAIN_USE, Capability, ModelUse
from domain.models.end_tokens import end_ids
from domain.models.load_progress import LoadPhase
from domain.models.model_card import LoadOptions
from domain.models.model_files import ENCODERS
from domain.models.position_settings import with_older_names
from domain.printable import printable
from domain.speculation.drafter import Drafter, SpeculationMode

NO_OWN_CODE: Mapping[str, Any] = {"model_file": None}
"""Overrides that mlx-lm applies to config.json itself, so that a file that changes after the check is not run
either."""

PIECE_BYTES = 64 * 2**20
"""Bytes of weights evaluated at once: some 20 ms of reading from a fast disk."""

_MOST_LINES = 4
"""Lines of an error of mlx that are told: it lists every name that it does not know."""

_CASTS = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}

FindClasses: TypeAlias = Callable[[dict[str, Any]], tuple[Callable[[Any], Any], Any]]

_logger = logging.getLogger("cairn.mlx")

_LEAST_QUANTISED = 32
"""The smallest group of quantised values: a matrix whose rows do not divide by the group's size is not quantised."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model by its files. `config`: config.json; `digest`: of the weights' content, a draft model's included;
    `adapter_digest`: of the adapter's, empty without one. `drafter_note`: why a head in the files is not used.
    `folder`: None for a network that was built in memory."""

    config: Mapping[str, Any]
    eos_token_ids: frozenset[int] = frozenset()
    digest: bytes = b""
    adapter_digest: bytes = b""
    speculation: SpeculationMode = SpeculationMode.AUTO
    drafter_note: str = ""
    folder: Path | None = None


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
    try:
        network, full_config = open_network(folder, use)
        _check_types(folder, network)
        yield
        if adapter is not None:
            read_adapter(adapter).apply(network)
        note = ""
        if options.draft:
            cast_network(network, options.dtype)
            network = DraftModelNetwork(network, _draft_model(Path(options.draft), options.dtype))
        else:
            if options.speculation.allows(Drafter.HEAD):
                network, note = with_head(network, folder, full_config)
            cast_network(network, options.dtype)
        if options.kv_bits is not None:
            keep_quantised(network, full_config, options.kv_bits)
        weights, done = named_parameters(network), 0
        total = sum(array.nbytes for _, array in weights)
        report(LoadPhase.READING, done, total)
        for piece in pieces_of(weights):
            yield
            evaluate(piece)
            done += sum(array.nbytes for array in piece)
            report(LoadPhase.READING, done, total)
    except Exception as error:
        raise ModelLoadFailed(_explain(folder, error)) from error
    ends = end_ids(full_config, read_entries(folder / "generation_config.json"))
    digest = digests.weights
    if with_older_names(full_config) is not full_config:  # state was kept that had been computed without them
        digest = xxhash.xxh3_128_digest(digest + b"rope_parameters")
    facts = ModelFacts(full_config, ends, digest, digests.adapter, options.speculation, note, folder)
    return network, facts


def keep_quantised(network: Any, config: Mapping[str, Any], bits: KVBits) -> None:
    """Lets a network keep its full KV in `bits`; a drafter's stays as it is."""
    trunk, family = trunk_of(network), family_of(network)
    quantise(trunk, bits, has_latents=has_latents(config))
    kept = quantised_layers(trunk)
    if kept is None or not kept.sides:
        _logger.warning("%s has no keys and values that can be kept in fewer bits", family)
    elif num := num_dequantised(trunk):
        _logger.warning("%s dequantises %d layers in every step, which is slower", family, num)


def _draft_model(folder: Path, dtype: str) -> Any:
    try:
        network, _ = open_network(folder)
        cast_network(network, dtype)
    except Exception as error:
        raise ModelLoadFailed(f"the draft model: {_explain(folder, error)}") from error
    return network


def open_network(folder: Path, use: ModelUse = PLAIN_USE) -> tuple[Any, dict[str, Any]]:
    """The network with its full configuration; no weight is read yet. Raises anything."""
    read_config(folder)  # refuses what mlx-lm would run, or build without end
    own, names = NO_OWN_CODE, frozenset[str]()
    if use.is_pooled:
        names = frozenset(network_tensors(folder))
    if Capability.EMBED in use.capabilities and not any(HEAD in name for name in names):
        own = {**NO_OWN_CODE, "tie_word_embeddings": True}  # nothing needs the output matrix
    prefix = "model." if "embed_tokens.weight" in names else ""
    load = mlx_lm_module("utils").load_model
    with _view(folder) as view:
        find = partial(encoder_classes, scores=Capability.SCORE in use.capabilities) if use.is_encoder else classes_of
        classes = partial(_classes, prefix=prefix, find=find)
        network, config = load(view, lazy=True, model_config=own, get_model_classes=classes)
    del network.sanitize  # it refers to the network, whose memory would wait for a collection
    return network, config


@contextmanager
def _view(folder: Path) -> Generator[Path]:
    """A temporary folder of links to what mlx-lm is to read: of a whole folder it takes every `model*.safetensors`, and
    the ends of generation_config.json instead of those of config.json."""
    with TemporaryDirectory(prefix="cairn-model-") as name:
        view, absolute = Path(name), folder.absolute()
        for file in weights_of(folder).names:
            (view / (file if file.startswith("model") else f"model-{file}")).symlink_to(absolute / file)
        for file in ("config.json", "hf_quant_config.json"):
            if (absolute / file).is_file():
                (view / file).symlink_to(absolute / file)
        yield view


def _classes(config: dict[str, Any], prefix: str, find: FindClasses) -> tuple[Callable[[Any], Any], Any]:
    """`prefix`: of names of weights that were saved without it, which embedding models often are."""
    model, arguments = find(config)

    def make(known: Any) -> Any:
        network = model(known)
        network.sanitize = cleaner(partial(model, known), network, prefix)
        return network

    def from_dict(config: Mapping[str, Any]) -> Any:
        return arguments.from_dict(with_older_names(config))

    return make, SimpleNamespace(from_dict=from_dict)


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


def _check_types(folder: Path, network: Any) -> None:
    """Refuses 8-bit values without scales, which a network would take as they are, as whole numbers."""
    found = named_parameters(network)
    scaled = {name.rpartition(".")[0] for name, _ in found if "scale" in name.rpartition(".")[2]}
    for name, array in found:
        module, _, part = name.rpartition(".")
        if part == "weight" and array.dtype in (mx.uint8, mx.int8) and module not in scaled:
            raise ModelLoadFailed(
                f"{folder} could not be loaded: {name} has 8-bit values without scales, which mlx-lm cannot read;"
                " try another conversion"
            )


def _explain(folder: Path, error: Exception) -> str:
    text = str(error)
    if isinstance(error, ModelLoadFailed):
        return error.message
    if isinstance(error, MemoryError) or "allocate" in text.lower():
        return f"not enough memory for {folder}: {text}"
    if isinstance(error, KeyError):
        return f"{folder} is incomplete: {text} is missing"
    config = read_entries(folder / "config.json")
    form = nested_config(config).get("quantization_config") or config.get("quantization_config")
    method = cast("Mapping[str, Any]", form).get("quant_method") if isinstance(form, Mapping) else None
    hint = f"; its weights are quantised as {printable(str(method))}: try another conversion" if method else ""
    lines = text.split("\n")
    rest = f" and {len(lines) - _MOST_LINES} more" if len(lines) > _MOST_LINES else ""
    return f"{folder} could not be loaded: {' '.join(lines[:_MOST_LINES]) or type(error).__name__}{rest}{hint}"


# ---- casts ----------------------------------------------------------------------------------------------------------


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


# ---- a network as shapes only --------------------------------------------------------------------------------------


def network_of(config: Mapping[str, Any], dtype: str) -> Any:
    """The network of a configuration alone, never evaluated. Raises anything."""
    find: FindClasses = partial(encoder_classes, scores=False) if config["model_type"] in ENCODERS else classes_of
    model, arguments = find(dict(config))
    network = model(arguments.from_dict(with_older_names(config)))
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
