"""Memory that verifying a draft takes in fact, beside what its step is charged."""

import mlx.core as mx

from adapters.mlx.loading.assembly import assemble, measure_chunks
from adapters.mlx.loading.network import ModelFacts
from adapters.mlx.model import MlxModel
from application.ports.compute import DecodeStart, Draft
from domain.id_row import IdRow
from domain.ids import ModelId, SequenceId
from domain.request.sampling import SamplingParams
from tests.support.engines.finish_load import finish_load
from tests.support.mlx import tiny_models

CHUNK, NUM_PROMPT, NUM_DECODES, WIDTH = 256, 600, 5, 5
IDS = tuple(SequenceId(index) for index in range(4))
WINDOWED = {"sliding_window": 512, "sliding_window_pattern": 6, "num_hidden_layers": 18, "num_key_value_heads": 4}

NUM_ARRAYS, SPARE_BYTES = 2 * 18, 16_384
"""What MLX leaves at the end of each buffer."""


def test_verifying_a_draft_takes_what_is_charged_at_most() -> None:
    """Its second token is rejected, so that the old states are needed again."""
    config = tiny_models.config_of("gemma3_text", **WINDOWED)
    network = tiny_models.build("gemma3_text", **WINDOWED)
    model = finish_load(assemble(network, ModelId("m"), ModelFacts(config, eos_token_ids=frozenset({2}))))
    model.correct(CHUNK, finish_load(measure_chunks(model, CHUNK, None)))
    _start(model)
    answer = [model.decode(IDS)[0].token_ids[0] for _ in range(NUM_DECODES + 1)]
    model.close(IDS)
    _start(model)
    for _ in range(NUM_DECODES):
        model.decode(IDS)
    mx.synchronize()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    results = model.decode(IDS, dict.fromkeys(IDS, Draft((answer[-1], *[answer[-1] ^ 1] * (WIDTH - 1)))))
    taken, shape = mx.get_peak_memory() - before, model.description.memory
    model.release()
    assert [(result.num_proposed, result.num_accepted) for result in results] == [(WIDTH - 1, 0)] * len(IDS)
    charged = shape.decode_bytes(len(IDS), NUM_PROMPT + NUM_DECODES + WIDTH, WIDTH)
    assert taken <= charged + NUM_ARRAYS * SPARE_BYTES
    assert charged < 1.2 * taken


def _start(model: MlxModel) -> None:
    prompt = IdRow([(17 * index + 5) % 90 for index in range(NUM_PROMPT)])
    for id in IDS:
        model.open(id)
        for start in range(0, NUM_PROMPT - 1, CHUNK):
            model.prefill(id, prompt[start : min(start + CHUNK, NUM_PROMPT - 1)])
        model.start_decode(id, prompt[NUM_PROMPT - 1 :], DecodeStart(prompt, SamplingParams(temperature=0), seed=0))
