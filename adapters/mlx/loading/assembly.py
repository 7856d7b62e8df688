"""From a network in memory to a LoadedModel: probe it and describe it."""

import platform
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import mlx.core as mx

from adapters.mlx.loading.load_measurement import chunk_to_measure, is_worth_measuring, measure_chunks
from adapters.mlx.loading.probe import probe
from adapters.mlx.memory.memory_shape import shape_of_network
from adapters.mlx.memory.peak_memory import PeakMemory
from adapters.mlx.memory.peak_meter import PeakMeter
from adapters.mlx.model import MlxModel
from adapters.mlx.runtime.arrays import parameters
from adapters.mlx.runtime.device import describe_device, on_cpu
from adapters.mlx.sampling.logit_rules import SamplerRow
from adapters.mlx.state.cuda_link import find_link
from adapters.mlx.state.payload import dtype_name
from application.ports.compute import DecodeStart
from domain.ids import ModelId
from domain.memory.config_shape import number
from domain.models.model_card import ModelDescription

DEFAULT_CONTEXT_LENGTH = 4096
"""For the few configurations that name no limit."""

_CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "model_max_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
    "max_context_length",
    "sequence_len",
)
_VOCABULARY_KEYS = ("vocab_size", "num_vocab", "padded_vocab_size")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model by its files. `config`: config.json; `digest`: of the weights' content; `adapter_digest`: of
    the adapter's, empty without one."""

    config: Mapping[str, Any]
    eos_token_ids: frozenset[int] = frozenset()
    digest: bytes = b""
    adapter_digest: bytes = b""


def assemble(
    network: Any,
    id: ModelId,
    facts: ModelFacts,
    make_sampler: Callable[[DecodeStart, int], SamplerRow] = SamplerRow,
    chunks_ahead: int | None = None,
    blas: str = "",
    peaks: PeakMemory | None = None,
    room_bytes: int | None = None,
) -> Generator[Future[Any] | None, None, MlxModel]:
    """Probe and describe an evaluated mlx-lm model on this thread, piece by piece. Raises ModelLoadFailed.

    `chunks_ahead` as in `MlxModel`; None for what suits the device. `blas`: which one MLX was given; empty for its own.
    `peaks`: where corrections of estimated memory are remembered, and by what a model is measured that has none; None
    for neither. `room_bytes`: what measuring may take of memory; None: any amount.
    """
    rows = number(facts.config, *_VOCABULARY_KEYS)
    found = yield from probe(network, rows)
    weights = parameters(network)
    context_length = context_length_of(facts.config)
    memory = shape_of_network(network, found.layout, facts.config)
    description = ModelDescription(
        id=id,
        model_type=str(facts.config.get("model_type", "")),
        vocab_size=min(rows or found.num_logits, found.num_logits),
        context_length=context_length,
        eos_token_ids=frozenset(eos for eos in facts.eos_token_ids if 0 <= eos < found.num_logits),
        dtype=_main_dtype(weights),
        weight_bytes=memory.weight_bytes,
        layout=found.layout,
        decode_mode=found.decode_mode,
        decode_note=found.decode_note,
        weights_digest=facts.digest,
        adapter_digest=facts.adapter_digest,
        runtime=_runtime(),
        arithmetic=_arithmetic(blas),
        memory=memory,
    )
    ahead = int(find_link() is not None) if chunks_ahead is None else chunks_ahead
    meter = yield from _meter(description, peaks, is_ahead=ahead > 0)
    description = replace(description, memory=meter.shape)
    model = MlxModel(network, description, found.num_logits, found.specs, make_sampler, ahead, meter)
    if peaks is not None and meter.is_new and is_worth_measuring(description, room_bytes):
        chunk = chunk_to_measure()
        if measured := (yield from measure_chunks(model, chunk, room_bytes)):
            model.correct(chunk, measured)
    return model


def context_length_of(config: Mapping[str, Any]) -> int:
    """Tokens, prompt and completion together."""
    return number(config, *_CONTEXT_KEYS) or DEFAULT_CONTEXT_LENGTH


def _meter(
    description: ModelDescription, peaks: PeakMemory | None, *, is_ahead: bool
) -> Generator[Future[Any] | None, None, PeakMeter]:
    if peaks is None or not description.weights_digest:  # a model without one cannot be recognised
        return PeakMeter(description.memory, is_ahead=is_ahead)
    key = f"{description.weights_digest.hex()} {description.runtime}, {description.arithmetic}"
    known = yield from peaks.recall(key)
    return PeakMeter(description.memory, known, partial(peaks.remember, key), is_ahead=is_ahead)


def _runtime() -> str:
    """The runtime: library versions to the minor, and the kind of device."""
    versions = " ".join(f"{name} {'.'.join(version(name).split('.')[:2])}" for name in ("mlx-lm", "mlx"))
    return f"{versions} {'cpu' if on_cpu() else 'gpu'}"


def _arithmetic(blas: str) -> str:
    """All that decides the last bits of a result beside the runtime."""
    return f"{platform.machine()}, {blas or 'built-in BLAS'}" if on_cpu() else describe_device()


def _main_dtype(weights: Sequence[tuple[str, mx.array]]) -> str:
    """The floating dtype most parameters have: what activations are computed in."""
    sizes: dict[str, int] = {}
    for _, array in weights:
        if mx.issubdtype(array.dtype, mx.floating):
            name = dtype_name(array.dtype)
            sizes[name] = sizes.get(name, 0) + array.size
    return max(sizes, key=lambda name: sizes[name], default="float32")
