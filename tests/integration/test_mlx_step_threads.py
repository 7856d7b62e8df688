"""A model whose steps are queued beside the compute thread: what fails, and which networks may."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx import arrays
from adapters.mlx.assembly import ModelFacts, assemble
from adapters.mlx.engine import MlxEngine
from adapters.mlx.lazy_building import builds_lazily
from adapters.mlx.model import MlxModel
from adapters.mlx.step_threads import StepThreads
from application.services.token_side.model_loads import whole
from domain.errors import ComputeFailed
from domain.ids import ModelId, SequenceId
from domain.model_card import LoadOptions, ModelSource
from tests.support.state_replay import continue_greedy, open_at, prompt_of, start_greedy
from tests.support.tiny_models import build, config_of, tiny_model, write_folder

PROMPTS = [prompt_of(40 + 7 * salt, salt) for salt in range(3)]


class Faulty:
    """Hands over as MLX does; `countdown`: the how-manieth from now on fails."""

    def __init__(self) -> None:
        self.countdown = 0

    def __call__(self, given: Iterable[mx.array]) -> None:
        self.countdown -= 1
        if self.countdown == 0:
            raise RuntimeError("the device has no memory left")
        arrays.hand_over(given)


class Network:
    """One of mlx-lm's, at which somebody looks."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.looks = False
        self.countdown = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        self.countdown -= 1
        if self.countdown == 0:
            raise RuntimeError("no such expert")
        logits: mx.array = self._network(tokens, cache=cache)
        if self.looks and bool(mx.any(mx.isnan(logits))):
            raise ValueError("no number")
        return logits


@pytest.fixture
def faulty() -> Faulty:
    return Faulty()


@pytest.fixture
def threads(faulty: Faulty) -> Iterator[StepThreads]:
    with closing(StepThreads(hand_over=faulty)) as threads:
        yield threads


def started(model: MlxModel) -> list[SequenceId]:
    ids = [open_at(model, prompt) for prompt in PROMPTS]
    for id, prompt in zip(ids, PROMPTS, strict=True):
        start_greedy(model, id, prompt)
    return ids


def decoded(model: MlxModel, ids: list[SequenceId], num_steps: int) -> tuple[list[list[int]], dict[int, str]]:
    """Tokens and errors, by place."""
    output: list[list[int]] = [[] for _ in ids]
    errors: dict[int, str] = {}
    for _ in range(num_steps):
        for result in model.decode([id for place, id in enumerate(ids) if place not in errors]):
            if result.error is None:
                output[ids.index(result.id)] += result.token_ids
            else:
                assert isinstance(result.error, ComputeFailed)
                errors[ids.index(result.id)] = str(result.error)
    return output, errors


@pytest.mark.parametrize("fails_at", range(1, 9))
def test_a_step_that_cannot_be_handed_over_is_told_by_its_rows(
    threads: StepThreads, faulty: Faulty, fails_at: int
) -> None:
    """And by no step before; what comes later is computed as ever."""
    model = tiny_model("llama", threads=threads)
    expected = [continue_greedy(model, open_at(model, prompt), prompt, 12) for prompt in PROMPTS]
    ids = started(model)
    faulty.countdown = fails_at
    output, errors = decoded(model, ids, 12)
    assert errors
    assert all("no memory left" in error for error in errors.values())
    for place, tokens in enumerate(output):
        assert tokens == expected[place][: len(tokens)]
        assert place in errors or len(tokens) == 12
    assert model.open_ids() == {id for place, id in enumerate(ids) if place not in errors}
    model.close(list(model.open_ids()))
    assert decoded(model, started(model), 12) == (expected, {})


@pytest.mark.parametrize("fails_at", [1, 4, 6])
def test_a_step_that_cannot_be_built_fails_its_rows(threads: StepThreads, fails_at: int) -> None:
    network = Network(build("llama"))
    model = whole(assemble(network, ModelId("tiny"), ModelFacts(config_of("llama")), threads=threads))
    ids = started(model)
    network.countdown = fails_at
    output, errors = decoded(model, ids, 12)
    assert errors
    assert all("no such expert" in error for error in errors.values())
    network.countdown = 0
    model.close(list(model.open_ids()))
    again, errors = decoded(model, started(model), 12)
    assert errors == {}
    assert all(tokens == more[: len(tokens)] for tokens, more in zip(output, again, strict=True))


def test_rows_that_end_and_are_captured_while_a_step_is_under_way(threads: StepThreads) -> None:
    model = tiny_model("llama", threads=threads)
    expected = [continue_greedy(model, open_at(model, prompt), prompt, 16) for prompt in PROMPTS]
    ids = started(model)
    output, _ = decoded(model, ids, 8)
    model.capture_blocks(ids[1], [(0, 32)])
    left = model.leave(ids[0])
    assert left is not None
    taker = SequenceId(10_000)
    model.open(taker)
    model.take_over(taker, ids[0], left.position)
    assert model.position(taker) == left.position
    more, errors = decoded(model, ids[1:], 8)
    assert errors == {}
    assert [before + after for before, after in zip(output[1:], more, strict=True)] == expected[1:]


@pytest.mark.parametrize(
    ("name", "may"), [("llama", True), ("deepseek_v3", True), ("dbrx", False), ("gemma3_text", False)]
)
def test_which_families_build_their_steps_without_looking(name: str, may: bool) -> None:
    """dbrx goes by which experts were chosen; windows of gemma3 may turn while nobody looks."""
    assert builds_lazily(build(name), vocab_size=None) is may


def test_a_network_that_looks_at_its_logits_is_found_out() -> None:
    network = Network(build("llama"))
    assert builds_lazily(network, vocab_size=None)
    network.looks = True
    assert not builds_lazily(network, vocab_size=None)
    assert mx.array([1.0]).item() == 1.0  # this thread's own stream is as it was


def test_a_model_is_loaded_between_steps_that_are_handed_over(threads: StepThreads, tmp_path: Path) -> None:
    model = tiny_model("llama", threads=threads)
    ids = started(model)
    engine = MlxEngine()
    source = ModelSource(ModelId("other"), str(write_folder("qwen3", tmp_path / "qwen3")))
    output: list[list[int]] = [[] for _ in ids]
    loading = engine.load(source, LoadOptions())
    other = None
    while other is None:
        for tokens, more in zip(output, decoded(model, ids, 1)[0], strict=True):
            tokens += more
        try:
            waits_for = next(loading)
            if waits_for is not None:
                waits_for.result()
        except StopIteration as end:
            other = end.value
    model.close(ids)
    for prompt, tokens in zip(PROMPTS, output, strict=True):
        assert tokens == continue_greedy(model, open_at(model, prompt), prompt, len(tokens))
    engine.unload(other)
