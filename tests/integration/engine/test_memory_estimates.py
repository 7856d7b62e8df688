"""Memory that a tiny model of each layout takes in fact, beside what its shape said before.

States are exact, but for what MLX leaves at the end of a small buffer (16 KiB). Before anything was measured an
estimate errs upwards; once a load has measured a chunk it is between LEAST and MOST of what any later chunk takes. What
is live at once rises by a quarter where the device's thread is kept waiting: of three chunks the middle one counts.
"""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import mlx.core as mx
import pytest

from adapters.mlx.caches.leaves import layout_of, new_caches
from adapters.mlx.engine import MlxEngine
from adapters.mlx.loading.assembly import assemble, is_worth_measuring, measure_chunks
from adapters.mlx.loading.network import ModelFacts, network_of
from adapters.mlx.memory import PeakMeter, highest_bytes, shape_of_network, state_costs
from adapters.mlx.model import MlxModel
from application.ports.compute import DecodeStart
from domain.id_row import IdRow
from domain.ids import ModelId, SequenceId
from domain.memory.estimate import DEEP_CHUNKS, LEAST_NEAR, PeakCorrection
from domain.memory.shape import MemoryShape
from domain.models.capability import Pooling
from domain.models.model_card import LoadOptions, ModelSource
from domain.models.pace import MEASURED_TOKENS
from domain.request.sampling import SamplingParams
from tests.support.effort import some_of
from tests.support.engines.finish_load import finish_load
from tests.support.mlx import tiny_models

LEAST_RATIO, MOST_RATIO = 0.75, 1.5
SPARE_BYTES = 16_384 * 2
"""For each array: what a copy may share of a buffer that is a little larger, and what others allocate meanwhile."""

LAYOUTS = (
    "llama",
    "deepseek_v3",
    "gemma3_text",
    "gpt_oss",
    "llama4",
    "mamba2",
    "qwen3_next",
    "granitemoehybrid",
    "qwen3_vl",
)
"""Full attention, latents, windows beside it, sinks, chunked windows; recurrent alone and beside attention; a nested
configuration."""

CHUNK, BLOCK = 256, 16
ID = SequenceId(1)
TOKENS = [(17 * index + 5) % 90 for index in range(CHUNK)]


OF_EACH_KIND = {"deepseek_v3", "gemma3_text", "llama4", "qwen3_next"}


@pytest.fixture(params=some_of(LAYOUTS, OF_EACH_KIND))
def loaded(request: pytest.FixtureRequest) -> Iterator[MlxModel]:
    model = tiny_models.tiny_model(request.param)
    gc.collect()
    mx.clear_cache()
    yield model
    model.release()


def test_an_estimate_errs_upwards_until_a_load_measures_it_and_is_near_then(loaded: MlxModel):
    planned = loaded.description.memory
    num_arrays = 5 * sum(1 for _ in loaded.description.layout.leaves())
    before = mx.get_active_memory()
    peaks = finish_load(measure_chunks(loaded, CHUNK, None))
    assert mx.get_active_memory() - before <= SPARE_BYTES, "measuring leaves nothing behind"
    loaded.correct(CHUNK, peaks)
    measured, ratios = loaded.description.memory, list[float]()
    loaded.open(ID)
    for end in range(CHUNK, (DEEP_CHUNKS + 3) * CHUNK, CHUNK):
        peak = loaded.measured_prefill(ID, TOKENS)
        assert mx.get_active_memory() - before <= planned.state_bytes(end, CHUNK) + num_arrays * SPARE_BYTES
        assert planned.chunk_bytes(CHUNK, end) >= peak
        ratios.append(measured.chunk_bytes(CHUNK, end) / peak)
    calm = [median(three) for three in zip(ratios, ratios[1:], ratios[2:], strict=False)]
    assert LEAST_RATIO <= min(calm) <= max(calm) <= MOST_RATIO, ratios


def test_copies_for_the_cache_take_no_more_than_is_counted(loaded: MlxModel):
    """A full window is no bound: every block of the chunk has its own part of it."""
    counted = loaded.description.memory.copy_bytes(CHUNK)
    loaded.open(ID)
    for end in (CHUNK, 2 * CHUNK, 3 * CHUNK):
        loaded.prefill(ID, TOKENS)
        blocks = loaded.capture_blocks(ID, [(at, at + BLOCK) for at in range(end - CHUNK, end, BLOCK)])
        copies = [payload for groups in (*blocks, loaded.capture_snapshot(ID, end)) for payload in groups.values()]
        assert counted / 2 < sum(payload.size_bytes for payload in copies) <= counted


@pytest.mark.parametrize("loaded", ["llama", "gemma3_text"], indirect=True)
@pytest.mark.parametrize(("start", "num_rows", "width"), [(0, 8, 32), (100, 4, 28), (1_000, 1, 32)])
def test_a_pass_over_rows_takes_about_what_is_counted_or_less(loaded: MlxModel, start: int, num_rows: int, width: int):
    loaded.correct(CHUNK, finish_load(measure_chunks(loaded, CHUNK, None)))
    loaded.open(ID)
    for position in range(0, start, CHUNK):
        loaded.prefill(ID, TOKENS[: min(CHUNK, start - position)])
    mx.synchronize()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    loaded.pool(ID, [TOKENS[row : row + width] for row in range(num_rows)], Pooling())
    peak, shape = mx.get_peak_memory() - before, loaded.description.memory
    num_tokens = num_rows * width
    counted = shape.state_bytes(num_rows * (start + width)) + shape.peak_bytes(num_tokens, start + num_tokens)
    assert counted / peak >= LEAST_RATIO


@pytest.mark.parametrize("loaded", LAYOUTS, indirect=True)
def test_the_configuration_alone_says_what_is_found_at_load(loaded: MlxModel):
    config = tiny_models.config_of(str(loaded.description.id))
    network = network_of(config, "float32")
    before = mx.get_active_memory()
    planned = shape_of_network(network, layout_of(new_caches(network)), config)
    assert mx.get_active_memory() - before < 100_000, "planning must not compute a weight"
    assert planned == loaded.description.memory


def test_without_room_nothing_is_measured():
    short = {"max_position_embeddings": 1024}
    facts = ModelFacts(tiny_models.config_of("llama", **short))
    model = finish_load(assemble(tiny_models.build("llama", **short), ModelId("llama"), facts))
    assert finish_load(measure_chunks(model, CHUNK, 1 << 18)) == {}
    assert finish_load(measure_chunks(model, 1 << 20, None)) == {}, "longer than its context"
    assert list(finish_load(measure_chunks(model, 256, None))) == [256, 1024], "as far as its context goes"
    assert list(finish_load(measure_chunks(model, 768, None))) == [768]
    assert not model.open_ids()


def test_a_model_that_is_small_beside_the_room_there_is_is_not_measured():
    model = tiny_models.tiny_model("llama")
    most_bytes = model.description.memory.peak_bytes(512, model.description.context_length)
    assert is_worth_measuring(model.description, 7 * most_bytes)
    assert not is_worth_measuring(model.description, 9 * most_bytes)
    assert not is_worth_measuring(model.description, None)


def test_chunks_that_are_served_correct_the_estimate():
    model = tiny_models.tiny_model("qwen3")
    described, kept = model.description, list[PeakCorrection]()
    meter = PeakMeter(described.memory, PeakCorrection(), kept.append)
    model = MlxModel(tiny_models.build("qwen3"), described, 256, {}, meter=meter)
    model.open(ID)
    model.prefill(ID, TOKENS)
    assert kept[-1].near < 1, "the formula errs upwards"
    assert model.description.memory == kept[-1].applied(described.memory)
    count = len(kept)
    model.prefill(ID, TOKENS[: CHUNK // 2])
    assert len(kept) == count, "a shorter chunk says nothing"


def test_the_highest_use_of_memory_is_reported_however_often_it_is_measured_anew():
    large = mx.zeros(1 << 24)
    mx.eval(large)
    highest = highest_bytes()
    del large
    meter = PeakMeter(MemoryShape())
    assert meter.begin(1, mx.synchronize)
    assert mx.get_peak_memory() < highest <= highest_bytes()


def test_what_a_load_measured_is_kept_and_not_measured_again(tmp_path: Path):
    folder, kept = tiny_models.write_folder("qwen3", tmp_path / "model"), tmp_path / "measured.json"
    source, engine = ModelSource(ModelId("m"), str(folder)), MlxEngine(tmp_path)
    described = finish_load(engine.load(source, LoadOptions(room_bytes=20 << 20))).description
    finish_load(engine.load(source, LoadOptions()))  # reads files in the thread that writes, after it has written
    key = f"peaks of {described.weights_digest.hex()} {described.runtime}, {described.arithmetic}"
    near, deep, count = json.loads(kept.read_text())[key]
    assert (LEAST_NEAR < near < 1, 0 < deep < 1, count) == (True, True, 2)
    kept.write_text(json.dumps({key: [0.5, 0.5, 1]}))
    planned = shape_of_network(*_network_of(folder))
    assert finish_load(engine.load(source, LoadOptions())).description.memory == PeakCorrection(0.5, 0.5, 1).applied(
        planned
    )
    assert json.loads(kept.read_text())[key] == [0.5, 0.5, 1]


def test_the_pace_of_prompts_is_kept_for_the_next_start(tmp_path: Path):
    folder = tiny_models.write_folder("qwen3", tmp_path / "model")
    source, engine = ModelSource(ModelId("m"), str(folder)), MlxEngine(tmp_path)
    model = finish_load(engine.load(source, LoadOptions()))
    assert model.description.pace == ()
    id = SequenceId(1)
    model.open(id)
    model.prefill(id, [1] * (MEASURED_TOKENS - 1))
    model.prefill(id, [1] * MEASURED_TOKENS)
    finish_load(engine.load(source, LoadOptions()))  # reads files in the thread that writes, after it has written
    [(bucket, per_token_s)] = finish_load(engine.load(source, LoadOptions())).description.pace
    assert bucket == 0
    assert per_token_s > 0
    model.start_decode(id, [1] * 1024, DecodeStart(IdRow([1] * 1151), SamplingParams(temperature=0), seed=0))
    finish_load(engine.load(source, LoadOptions()))
    paces = finish_load(engine.load(source, LoadOptions())).description.pace
    assert [bucket for bucket, _ in paces] == [0, 1], "the chunk that ends the prompt counts too"


def _network_of(folder: Path) -> tuple[object, object, dict[str, object]]:
    config = json.loads((folder / "config.json").read_text())
    network = network_of(config, "float32")
    return network, layout_of(new_caches(network)), config


def test_every_family_has_a_shape_by_its_configuration():
    """All of them in seconds: nothing is computed."""
    for name in tiny_models.names():
        network = network_of(tiny_models.config_of(name), "float32")
        layout = layout_of(new_caches(network))
        costs = state_costs(layout, network)
        assert len(costs) >= len(layout.groups), name
        assert all(cost.bytes_per_token > 0 or cost.fixed_bytes > 0 for cost in costs), name


def test_chunks_that_are_queued_ahead_are_measured_ever_less_often() -> None:
    meter = PeakMeter(MemoryShape(), runs_ahead=True)
    measured = [number for number in range(1, 200) if meter.begin(CHUNK, lambda: None)]
    assert measured == [1, 2, 3, 4, 64, 128, 192]
