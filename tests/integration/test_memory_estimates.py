"""What a tiny model of each layout takes in fact, beside what its shape said before.

Margins. States are exact, but for what MLX leaves at the end of a small buffer (16 KiB). A prefill chunk takes at most
a quarter more than estimated; the most that any of these takes more is a fifth (the state space model whose blocks of
256 tokens bend the plane). Too little is the failure here: too much only makes a server more careful.
"""

import gc
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from adapters.mlx.assembly import context_length_of
from adapters.mlx.caches.layout import layout_of, new_caches
from adapters.mlx.caches.state_costs import state_costs
from adapters.mlx.engine import MlxEngine
from adapters.mlx.memory_shape import shape_of_network
from adapters.mlx.model import MlxModel
from adapters.mlx.peak_meter import PeakMeter, highest_bytes, uncorrected
from adapters.mlx.planned_network import network_of
from application.services.token_side.model_loads import whole
from domain.ids import ModelId, SequenceId
from domain.memory.correction import LEAST, MIN_BYTES, MOST, PeakCorrection
from domain.memory.shape import MemoryShape
from domain.model_card import LoadOptions, ModelSource
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
    factor, largest, count = json.loads(kept.read_text())[key]
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
