"""From a network in memory to a LoadedModel: probed, described, and measured if its memory matters.

The measurement computes one chunk at the start of a prompt and one far behind it. These two peaks correct the
configuration's formula before anything is served.
"""

import logging
import platform
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from dataclasses import astuple, replace
from importlib.metadata import version
from typing import Any

import mlx.core as mx

from adapters.mlx.caches.leaves import quantised_layers
from adapters.mlx.cuda.link import find_link
from adapters.mlx.loading.context import context_of
from adapters.mlx.loading.grid import find_grid
from adapters.mlx.loading.network import ModelFacts
from adapters.mlx.loading.pieces import find_flaw
from adapters.mlx.loading.probe import probe
from adapters.mlx.loading.trunks import libraries_of
from adapters.mlx.loading.width_costs import LEAST_BYTES, find_costs
from adapters.mlx.memory import MeasuredFile, PeakMeter, correction_of, paces_of, shape_of_network
from adapters.mlx.model import MlxModel
from adapters.mlx.runtime.arrays import parameters
from adapters.mlx.runtime.device import CPU_GRID, describe_device, has_metal, least_grid, on_cpu, preferred_grid
from adapters.mlx.speculation.drafting import DraftingNetwork
from adapters.mlx.speculation.heads import trunk_of
from adapters.mlx.state.payload import dtype_name
from adapters.mlx.vision.tower import VisionEncoder
from application.ports.compute import LoadReport, unreported
from domain.ids import ModelId, SequenceId
from domain.memory.estimate import DEEP_CHUNKS, number
from domain.models.load_progress import LoadPhase
from domain.models.model_card import ModelDescription
from domain.models.pace import Pace
from domain.speculation.drafter import SpeculationMode

_VOCABULARY_KEYS = ("vocab_size", "num_vocab", "padded_vocab_size")

_MEASURED_ID = SequenceId(-1)
_NUM_TOY_TOKENS = 100
_SMALL_SHARE = 8

_logger = logging.getLogger("cairn.memory")


def assemble(
    network: Any,
    id: ModelId,
    facts: ModelFacts,
    blas: str = "",
    measured: MeasuredFile | None = None,
    room_bytes: int | None = None,
    vision: VisionEncoder | None = None,
    report: LoadReport = unreported,
) -> Generator[Future[Any] | None, None, MlxModel]:
    """Probes and describes an evaluated mlx-lm model on this thread, piece by piece. Raises ModelLoadFailed.

    `blas`: identity of the BLAS that MLX uses; empty for its own. `measured`: remembered corrections of estimated
    memory, costs of passes, and pace; what it lacks is measured; None for none of them. `room_bytes`: memory that
    measuring may take; None for any. `vision`: None for a model that does not see.
    """
    report(LoadPhase.MEASURING, 0, 0)
    rows = number(facts.config, *_VOCABULARY_KEYS)
    found = yield from probe(network, rows)
    memory = shape_of_network(network, found.layout, facts.config)
    chunking = memory.chunking
    memory = memory if vision is None else vision.added_to(memory)
    description = ModelDescription(
        id=id,
        model_type=str(facts.config.get("model_type", "")),
        vocab_size=min(rows or found.num_logits, found.num_logits),
        context=context_of(facts.config, found.layout, dict(parameters(network)), facts.folder),
        eos_token_ids=frozenset(eos for eos in facts.eos_token_ids if 0 <= eos < found.num_logits),
        dtype=main_dtype(parameters(network)),
        weight_bytes=memory.weight_bytes,
        layout=found.layout,
        decode_mode=found.decode_mode,
        decode_note=found.decode_note,
        weights_digest=facts.digest,
        adapter_digest=facts.adapter_digest,
        runtime=runtime_of(*libraries_of(network, sees=vision is not None)),
        arithmetic=arithmetic_of(blas),
        memory=memory,
        own_drafter=network.drafter if isinstance(network, DraftingNetwork) else None,
        drafter_note=f"drafts are not used: {found.draft_note}" if found.draft_note else facts.drafter_note,
        image_is_whole=vision is not None and vision.scheme.is_whole,
        chunking=chunking,
    )
    runs_ahead = find_link() is not None
    meter, pace = PeakMeter(memory, runs_ahead=runs_ahead), Pace()
    content = f"{description.weights_digest.hex()} {description.runtime}, {description.arithmetic}"
    if (kept := quantised_layers(trunk_of(network))) is not None:
        content += f", KV of {kept.bits}"
        description = replace(description, kv_bits=kept.bits if kept.sides else None)
    if found.layout.is_reusable:
        flaw = yield from find_flaw(network, rows, measured, content if description.weights_digest else "")
        description = replace(description, reuse_note=flaw)
    if measured is not None and description.weights_digest:  # a model without a digest cannot be recognised
        key = f"peaks of {content}"
        known = correction_of((yield from measured.recall(key)))
        meter = PeakMeter(memory, known, lambda now: measured.remember(key, list(astuple(now))), runs_ahead=runs_ahead)
        earlier = paces_of((yield from measured.recall(f"pace of {content}")))
        pace = Pace(earlier, lambda now: measured.remember(f"pace of {content}", now))
        description = replace(description, pace=earlier)
    description = replace(description, memory=meter.shape)
    model = MlxModel(
        network,
        description,
        found.num_logits,
        found.specs,
        runs_ahead=runs_ahead,
        meter=meter,
        vision=vision,
        pace=pace,
    )
    if measured is not None and has_metal():
        grid = yield from find_grid(model, measured, content, least_grid(), room_bytes=room_bytes)
        model.chunk_by(replace(chunking, grid=grid))
        description = model.description
    if measured is not None and meter.is_new and is_worth_measuring(description, room_bytes):
        # On a GPU a whole chunk, since its size decides how far the device runs ahead. A CPU does not run ahead and
        # takes memory in proportion to the tokens: half a chunk shows as much in a third of the time.
        chunk = CPU_GRID // 2 if on_cpu() else description.chunking.step(preferred_grid())
        if peaks := (yield from measure_chunks(model, chunk, room_bytes, report)):
            model.correct(chunk, peaks)
    is_off = found.draft_note or facts.speculation is SpeculationMode.OFF or description.weight_bytes < LEAST_BYTES
    if measured is not None and not is_off:
        costs = yield from find_costs(model, measured, content, room_bytes=room_bytes)
        if costs is not None:
            model.may_draft(facts.speculation, costs)
    return model


def is_worth_measuring(model: ModelDescription, room_bytes: int | None) -> bool:
    """True if the largest step is estimated at more than an eighth of the room. `room_bytes` None: any amount."""
    most_bytes = model.memory.peak_bytes(preferred_grid(), model.context_length)
    return room_bytes is not None and most_bytes > room_bytes // _SMALL_SHARE


def measure_chunks(
    model: MlxModel, chunk: int, room_bytes: int | None, report: LoadReport = unreported
) -> Generator[None, None, dict[int, int]]:
    """Returns peaks above the state by the chunk's end, for `PeakCorrection.of_load`; empty if there is no room to
    measure. The far chunk, as far as context and room allow, continues the first one's state, repeated: only its size
    matters. Leaves nothing behind."""
    described = model.description
    shape, most_before = described.memory, described.context_length // chunk - 1
    if most_before < 0 or _exceeds(room_bytes, shape.state_bytes(chunk, chunk) + shape.peak_bytes(chunk, chunk)):
        return {}
    tokens = [(17 * index + 5) % min(_NUM_TOY_TOKENS, described.vocab_size) for index in range(chunk)]
    peaks: dict[int, int] = {}
    most_far = min(DEEP_CHUNKS, most_before) if described.layout.is_reusable else 0
    num_chunks = 2 if most_far else 1
    try:
        report(LoadPhase.MEASURING, 0, num_chunks)
        model.open(_MEASURED_ID)
        peaks[chunk] = model.measured_prefill(_MEASURED_ID, tokens)
        report(LoadPhase.MEASURING, 1, num_chunks)
        yield
        for num_before in range(most_far, 0, -1):
            end = (num_before + 1) * chunk
            # A peak grows no faster than the tokens, and the state is held twice while it is put together.
            if _exceeds(room_bytes, 2 * shape.state_bytes(end, chunk) + peaks[chunk] * (num_before + 1)):
                continue
            (block,) = model.capture_blocks(_MEASURED_ID, [(0, chunk)])
            snapshot = model.capture_snapshot(_MEASURED_ID, chunk)
            model.restore(_MEASURED_ID, end - chunk, [block] * num_before, snapshot)
            yield
            peaks[end] = model.measured_prefill(_MEASURED_ID, tokens)
            break
    except Exception as error:  # a family's code may raise anything on a state that no prompt gives
        _logger.info("a chunk of %s could not be measured, its memory is estimated: %s", described.id, error)
    finally:
        model.close([_MEASURED_ID])
        report(LoadPhase.MEASURING, 0, 0)
    return peaks


def _exceeds(room_bytes: int | None, num_bytes: int) -> bool:
    return room_bytes is not None and num_bytes > room_bytes


def runtime_of(*libraries: str) -> str:
    """The runtime: library versions to the minor, and the kind of device."""
    versions = " ".join(f"{name} {'.'.join(version(name).split('.')[:2])}" for name in libraries)
    return f"{versions} {'cpu' if on_cpu() else 'gpu'}"


def arithmetic_of(blas: str) -> str:
    """Everything that decides the last bits of a result beside the runtime."""
    return f"{platform.machine()}, {blas or 'built-in BLAS'}" if on_cpu() else describe_device()


def main_dtype(weights: Sequence[tuple[str, mx.array]]) -> str:
    """The floating dtype of most parameters, which activations have too."""
    sizes: dict[str, int] = {}
    for _, array in weights:
        if mx.issubdtype(array.dtype, mx.floating):
            name = dtype_name(array.dtype)
            sizes[name] = sizes.get(name, 0) + array.size
    return max(sizes, key=lambda name: sizes[name], default="float32")
