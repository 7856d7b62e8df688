"""What a decode step does however many rows it has: one read-back, and next to no Python a row.

Counted at the one function that brings a step's words to the host, and by the interpreter's own profile hook.
"""

from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx.runtime.arrays import read_back
from adapters.mlx.sampling import sampled as sampled_module
from application.ports.compute import DecodeStart, LoadedModel
from domain.ids import SequenceId
from domain.request.sampling import SamplingParams
from tests.support.call_counts import num_calls
from tests.support.mlx.tiny_models import tiny_model
from tests.support.stores.state_replay import open_at, prompt_of

GREEDY = SamplingParams(temperature=0)
SETTINGS = {
    "greedy": [GREEDY],
    "of every kind": [
        GREEDY,
        SamplingParams(temperature=1, top_k=4, num_logprobs=2),
        SamplingParams(temperature=0.7, frequency_penalty=1),
    ],
}
MAX_CALLS_PER_ROW = 2.0
"""Making its result, and its log probabilities' value where it asked."""


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model("llama")


@pytest.fixture
def read_backs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of words of each."""
    found: list[int] = []

    def counted(words: mx.array) -> Any:
        found.append(words.size)
        return read_back(words)

    monkeypatch.setattr(sampled_module, "read_back", counted)
    return found


def begin(model: LoadedModel, settings: list[SamplingParams], num_rows: int) -> list[SequenceId]:
    """Decoding in one group, the settings in turns."""
    ids: list[SequenceId] = []
    for row in range(num_rows):
        prompt = prompt_of(30, row)
        ids.append(open_at(model, prompt))
        model.start_decode(ids[-1], prompt[-1:], DecodeStart(prompt, settings[row % len(settings)], seed=row))
    for _ in range(3):
        model.decode(ids)
    return ids


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_step_is_read_once(model: LoadedModel, read_backs: list[int], settings: list[SamplingParams]):
    ids = begin(model, settings, 6)
    read_backs.clear()
    for number in range(1, 5):
        results = model.decode(ids)
        assert len(read_backs) == number
        assert all(
            bool(result.logprobs) == (one.num_logprobs is not None)
            for result, one in zip(results, settings * 6, strict=False)
        )
    model.close(ids)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_rows_cost_next_to_no_python(model: LoadedModel, settings: list[SamplingParams]):
    counts: list[int] = []
    for num_rows in (6, 24):
        ids = begin(model, settings, num_rows)
        counts.append(min(num_calls(lambda ids=ids: model.decode(ids)) for _ in range(3)))
        model.close(ids)
    assert (counts[1] - counts[0]) / 18 <= MAX_CALLS_PER_ROW
