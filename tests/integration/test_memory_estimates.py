"""What a tiny model of each layout takes in fact, beside what its shape said before.

Margins. States are exact, but for what MLX leaves at the end of a small buffer (16 KiB). A prefill chunk takes at most
a quarter more than estimated; the most that any of these takes more is a fifth (the state space model whose blocks of
256 tokens bend the plane). Too little is the failure here: too much only makes a server more careful.
"""

import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from adapters.mlx import memory_shape
from adapters.mlx.assembly import context_length_of
from adapters.mlx.caches.layout import layout_of, new_caches
from adapters.mlx.caches.state_costs import state_costs
from adapters.mlx.chunk_queue import ChunkQueue
from adapters.mlx.engine import MlxEngine
from adapters.mlx.memory_shape import shape_of_network
from adapters.mlx.model import MlxModel
from adapters.mlx.peak_meter import PeakMeter, highest_bytes, uncorrected
from adapters.mlx.planned_network import network_of
from application.ports.compute import DecodeStart
from application.services.token_side.model_loads import whole
from domain.ids import ModelId, SequenceId
from domain.memory.correction import LEAST, MIN_BYTES, MOST, PeakCorrection
from domain.memory.shape import MemoryShape
from domain.model_card import LoadOptions, ModelSource
from domain.sampling import SamplingParams
from tests.support import tiny_models

MARGIN = 1.25
SPARE_BYTES = 16_384 * 2
"""For each array: what a copy may share of a buffer that is a little larger, and what others allocate meanwhile."""

LAYOUTS = (
    "llama",
    "deepseek_v3",
    "gemma3_text",
    "gpt_oss",
    "llama4",
    "mamba2",
    "jamba",
    "qwen3_next",
    "granitemoehybrid",
)
"""Full attention, latents, windows beside it, sinks, chunked windows; recurrent alone and beside attention, by loops
over tokens and without."""

CHUNK = 256
ID = SequenceId(1)


@pytest.fixture(params=LAYOUTS)
def loaded(request: pytest.FixtureRequest) -> Iterator[MlxModel]:
    model = tiny_models.tiny_model(request.param)
    gc.collect()
    mx.clear_cache()
    yield model
    model.release()


def prefill(model: MlxModel, num_chunks: int) -> Iterator[tuple[int, int, int]]:
    """End, bytes held beyond what was before, and the peak beyond those, by chunk."""
    before = mx.get_active_memory()
    model.open(ID)
    for number in range(num_chunks):
        mx.reset_peak_memory()
        model.prefill(ID, [(17 * index + 5) % 90 for index in range(CHUNK)])
        held = mx.get_active_memory()
        yield (number + 1) * CHUNK, held - before, max(mx.get_peak_memory() - held, 0)


def test_prefill_takes_hardly_more_than_was_estimated(loaded: MlxModel):
    shape = loaded.description.memory
    num_arrays = 5 * sum(1 for _ in loaded.description.layout.leaves())
    for end, held, peak in prefill(loaded, 3):
        assert held <= shape.state_bytes(end, CHUNK) + num_arrays * SPARE_BYTES
        assert held + peak <= MARGIN * (shape.state_bytes(end, CHUNK) + shape.step.bytes_at(CHUNK, end))


def test_the_configuration_alone_says_what_is_found_at_load(loaded: MlxModel):
    config = tiny_models.config_of(str(loaded.description.id))
    network = network_of(config, "float32")
    before = mx.get_active_memory()
    layout = layout_of(new_caches(network))
    planned = whole(shape_of_network(network, layout, config, context_length_of(config)))
    assert mx.get_active_memory() - before < 100_000, "planning must not compute a weight"
    assert planned == loaded.description.memory


def test_a_model_corrects_its_own_estimate():
    model = tiny_models.tiny_model("qwen3")
    description = model.description
    low = replace(
        description.memory, step=replace(description.memory.step, base_bytes=2 * MIN_BYTES, token_bytes=0, pair_bytes=0)
    )
    kept: list[PeakCorrection] = []
    model = MlxModel(
        tiny_models.build("qwen3"),
        replace(description, memory=low),
        256,
        {},
        meter=PeakMeter(low, PeakCorrection(), kept.append, is_ahead=False),
    )
    for _ in prefill(model, 4):
        pass
    assert kept[-1].factor > 1
    assert model.description.memory == kept[-1].applied(low)


def test_a_chunk_that_is_held_takes_no_more_than_is_said_then(monkeypatch: pytest.MonkeyPatch):
    """On a CPU MLX's limit holds it as on CUDA. What it computes is the same."""
    free = tiny_models.tiny_model("qwen3")
    monkeypatch.setattr(memory_shape, "_traced_steps", {})
    monkeypatch.setattr(memory_shape, "most_ahead_bytes", lambda: 1 << 12)
    held = tiny_models.tiny_model("qwen3")
    shape, tokens = held.description.memory, [(17 * index + 5) % 90 for index in range(CHUNK)]
    before, limits, put = mx.get_memory_limit(), list[int](), ChunkQueue.put

    def seen(queue: ChunkQueue, state: Sequence[mx.array]) -> None:
        limits.append(mx.get_memory_limit() - mx.get_active_memory())
        put(queue, state)

    monkeypatch.setattr(ChunkQueue, "put", seen)
    for model in (held, free):
        model.open(ID)
    for end in (CHUNK, 2 * CHUNK):
        mx.reset_peak_memory()
        held.prefill(ID, tokens)
        assert mx.get_peak_memory() - mx.get_active_memory() <= shape.chunk_bytes(CHUNK, end)
        assert shape.chunk_bytes(CHUNK, end) < shape.step.bytes_at(CHUNK, end), "or nothing is held"
        free.prefill(ID, tokens)
    start = DecodeStart(tuple(tokens), SamplingParams(temperature=0), seed=1)
    for model in (held, free):
        model.start_decode(ID, tokens, start)
    bounded, unbounded = limits[0::2], limits[1::2]
    assert max(bounded) < 4 * shape.chunk_bytes(CHUNK, CHUNK) < before // 4 < min(unbounded)
    assert mx.get_memory_limit() == before
    first, second = (model.decode([ID])[0].token_ids for model in (held, free))
    assert first == second
    for model in (held, free):
        model.release()


def test_the_highest_use_of_memory_is_told_however_often_it_is_measured_anew():
    large = mx.zeros(1 << 24)
    mx.eval(large)
    highest = highest_bytes()
    del large
    meter = uncorrected(MemoryShape())
    assert meter.begin(mx.synchronize)
    assert mx.get_peak_memory() < highest <= highest_bytes()


def test_what_is_learnt_while_it_serves_is_kept(tmp_path: Path):
    folder, kept = tiny_models.write_folder("qwen3", tmp_path / "model"), tmp_path / "memory-peaks.json"
    source, engine = ModelSource(ModelId("m"), str(folder)), MlxEngine(tmp_path)
    told = whole(engine.load(source, LoadOptions())).description
    key = f"{told.weights_digest.hex()} {told.runtime}, {told.arithmetic}"
    kept.write_text(json.dumps({key: [MOST, 1, 1]}))
    model = whole(engine.load(source, LoadOptions()))
    num_tokens = 1024
    assert told.memory.step.bytes_at(num_tokens, num_tokens) > MIN_BYTES, "or nothing is learnt of it"
    model.open(ID)
    model.prefill(ID, [(17 * index + 5) % 90 for index in range(num_tokens)])
    again = whole(engine.load(source, LoadOptions()))  # reads files in the thread that writes, after it has written
    factor, largest, count, _ = json.loads(kept.read_text())[key]
    assert LEAST < factor < MOST
    assert (largest > MIN_BYTES, count) == (True, 2)
    assert again.description.memory == PeakCorrection(factor, largest, count).applied(told.memory)


def test_every_family_has_a_shape_by_its_configuration():
    """All of them in seconds: nothing is computed, and no pass is traced here."""
    for name in tiny_models.names():
        network = network_of(tiny_models.config_of(name), "float32")
        layout = layout_of(new_caches(network))
        costs = state_costs(layout, network)
        assert len(costs) >= len(layout.groups), name
        assert all(cost.bytes_per_token > 0 or cost.fixed_bytes > 0 for cost in costs), name


def test_chunks_that_are_queued_ahead_are_measured_ever_less_often() -> None:
    meter = PeakMeter(MemoryShape(), PeakCorrection(), lambda _: None, is_ahead=True)
    measured = [number for number in range(1, 200) if meter.begin(lambda: None)]
    assert measured == [1, 2, 3, 4, 8, 16, 32, 64, 128, 192]
