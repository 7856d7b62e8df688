"""A model whose steps are queued beside the compute thread: what fails, and which networks may."""

import random
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx import arrays, batch
from adapters.mlx import engine as engine_module
from adapters.mlx.assembly import ModelFacts, assemble
from adapters.mlx.engine import MlxEngine
from adapters.mlx.lazy_building import builds_lazily
from adapters.mlx.model import MlxModel
from adapters.mlx.reading_order import Reading, ReadingOrder
from adapters.mlx.step_threads import StepThreads
from application.services.token_side.model_loads import whole
from domain.errors import ComputeFailed
from domain.ids import ModelId, SequenceId
from domain.model_card import LoadOptions, ModelSource
from tests.support.effort import scaled
from tests.support.state_replay import continue_greedy, new_id, open_at, prompt_of, start_greedy
from tests.support.step_scripts import Handing, Script
from tests.support.tiny_models import build, config_of, tiny_model, write_folder

PROMPTS = [prompt_of(40 + 7 * salt, salt) for salt in range(3)]

HELD_S, LONG_S = 0.2, 20.0


class Faulty:
    """Hands over as MLX does; `countdown`: the how-manieth from now on fails."""

    def __init__(self) -> None:
        self.countdown = 0
        self.is_open = threading.Event()
        self.is_open.set()

    def hold(self) -> None:
        """From now on, for a moment."""
        self.is_open.clear()
        threading.Timer(HELD_S, self.is_open.set).start()

    def __call__(self, given: Iterable[mx.array]) -> None:
        assert self.is_open.wait(LONG_S)
        self.countdown -= 1
        if self.countdown == 0:
            raise RuntimeError("the device has no memory left")
        arrays.hand_over(given)


class Network:
    """One of mlx-lm's, at which somebody looks."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.looks = False
        self.looks_at_chunks = False
        self.countdown = 0
        self.called = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        self.called()
        self.countdown -= 1
        if self.countdown == 0:
            raise RuntimeError("no such expert")
        logits: mx.array = self._network(tokens, cache=cache)
        if (self.looks or (self.looks_at_chunks and tokens.shape[1] > 1)) and bool(mx.any(mx.isnan(logits))):
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
    network.looks, network.looks_at_chunks = False, True  # its chunks are built while a step is handed over, too
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


def test_loading_goes_on_when_a_step_is_handed_over(threads: StepThreads, faulty: Faulty, tmp_path: Path) -> None:
    """What evaluates in there is not always ours, so no piece of it may run meanwhile."""
    source = ModelSource(ModelId("other"), str(write_folder("qwen3", tmp_path / "qwen3")))
    engine = MlxEngine()
    loading = engine.load(source, LoadOptions())
    faulty.is_open.clear()
    threads.queue(lambda: [mx.array([1.0]) + 1])
    threading.Timer(0.05, faulty.is_open.set).start()
    next(loading)
    assert faulty.is_open.is_set()
    loading.close()


def test_a_model_without_them_is_told(threads: StepThreads, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "cairn.mlx"):
        tiny_model("llama", threads=threads)
        assert "queued by the compute thread" not in caplog.text
        tiny_model("dbrx", threads=threads)
    assert "decode steps of dbrx are queued by the compute thread" in caplog.text


def test_an_engine_without_them_says_why(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def no_driver() -> None:
        raise OSError("libcuda.so.1: no such file")

    monkeypatch.setattr(engine_module, "CudaDriver", no_driver)
    assert engine_module._step_threads() is None
    assert "libcuda.so.1: no such file" in caplog.text


def test_freed_heap_goes_back_on_a_device_of_its_own_once_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "on_cpu", lambda: False)
    trimmed: list[bool] = []
    engine, model = MlxEngine(trim_heap=lambda: trimmed.append(True)), tiny_model("llama")
    engine._models.append(model)
    id = open_at(model, PROMPTS[0])
    engine.clear_cache()
    assert not trimmed, "somebody would wait for it"
    model.close([id])
    engine.clear_cache()
    assert trimmed == [True]


def test_who_joins_after_a_step_that_failed_is_alone_with_it(threads: StepThreads, faulty: Faulty) -> None:
    model = tiny_model("llama", threads=threads)
    expected = [continue_greedy(model, open_at(model, prompt), prompt, 12) for prompt in PROMPTS]
    ids = started(model)
    before, errors = decoded(model, ids[:2], 4)
    assert errors == {}
    decoded(model, ids[2:], 1)
    faulty.countdown = 1  # its first step, before it would join
    after, errors = decoded(model, ids, 8)
    assert list(errors) == [2]
    assert "no memory left" in errors[2]
    assert [old + new for old, new in zip(before, after, strict=False)] == expected[:2]


def test_a_group_that_failed_takes_nobody_with_it(threads: StepThreads, faulty: Faulty) -> None:
    model = tiny_model("llama", threads=threads)
    expected = continue_greedy(model, open_at(model, PROMPTS[2]), PROMPTS[2], 9)
    ids = started(model)
    assert decoded(model, ids[:2], 3)[1] == {}
    first, _ = decoded(model, ids[2:], 1)
    faulty.countdown = 1  # of those two
    assert decoded(model, ids[:2], 1)[1] == {}
    after, errors = decoded(model, ids, 8)
    assert sorted(errors) == [0, 1]
    assert first[0] + after[2] == expected


def test_what_a_step_that_failed_should_have_computed_is_not_kept(threads: StepThreads, faulty: Faulty) -> None:
    model = tiny_model("llama", threads=threads)
    ids = started(model)
    assert decoded(model, ids, 3)[1] == {}
    faulty.countdown = 1
    assert decoded(model, ids, 1)[1] == {}  # of the step before
    with pytest.raises(ComputeFailed, match="was lost"):
        model.capture_blocks(ids[0], [(0, 32)])
    assert model.leave(ids[1]) is None
    _, errors = decoded(model, [ids[0], ids[2]], 1)
    assert sorted(errors) == [0, 1]


@pytest.mark.parametrize("decodes", [False, True])
def test_a_model_that_looks_waits_for_another_ones_step(threads: StepThreads, faulty: Faulty, decodes: bool) -> None:
    model = tiny_model("llama", threads=threads)
    network = Network(build("llama"))
    network.looks = True
    looking = whole(assemble(network, ModelId("looking"), ModelFacts(config_of("llama")), threads=threads))
    ids, others = started(model), started(looking)
    decoded(model, ids, 2)
    decoded(looking, others, 2)
    seen: list[bool] = []
    network.called = lambda: seen.append(faulty.is_open.is_set())
    faulty.hold()
    decoded(model, ids, 1)
    if decodes:
        decoded(looking, others, 1)
    else:
        id = new_id()
        looking.open(id)
        looking.prefill(id, PROMPTS[0], num_prompt_logprobs=0)  # such a chunk is not measured
    assert seen
    assert all(seen)
    looking.close(others)


def test_windows_of_one_model_are_parted_when_another_ones_step_is_handed_over(
    threads: StepThreads, faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mlx-lm's class evaluates where its rows begin."""
    model, windowed = tiny_model("llama", threads=threads), tiny_model("gemma3_text", threads=threads)
    ids, others = started(model), started(windowed)
    decoded(model, ids, 2)
    decoded(windowed, others, 3)
    mlx: Any = mx
    evaluate, seen = mlx.eval, list[bool]()

    def spy(*given: Any) -> None:
        seen.append(faulty.is_open.is_set())
        evaluate(*given)

    faulty.hold()
    decoded(model, ids, 1)
    monkeypatch.setattr(mx, "eval", spy)
    windowed.leave(others[0])
    assert seen
    assert all(seen)


def test_unloading_waits_for_the_step_that_holds_the_weights(threads: StepThreads, faulty: Faulty) -> None:
    model = tiny_model("llama", threads=threads)
    decoded(model, started(model), 2)
    faulty.hold()
    decoded(model, list(model.open_ids()), 1)
    model.close(list(model.open_ids()))
    model.release()
    assert faulty.is_open.is_set()


def test_random_lives_are_the_same_with_threads_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Down to every error and the row that is told it; and nothing is held in the end."""

    def without_a_clock(_order: ReadingOrder, _reading: Reading, _step_s: float) -> None:
        pass

    monkeypatch.setattr(ReadingOrder, "record", without_a_clock)
    count, names = scaled(16), ("llama", "gemma3_text")
    with ThreadPoolExecutor(1) as workers, ThreadPoolExecutor(2) as readers:

        def lives(threads: StepThreads | None, handing: Handing) -> list[list[object]]:
            monkeypatch.setattr(batch, "evaluate_soon", handing.soon)
            models = [tiny_model(name, threads=threads) for name in names]
            return [Script(models, seed, handing, workers, readers).run(25) for seed in range(count)]

        expected = lives(None, Handing())
        handing = Handing(random.Random(7))
        with closing(StepThreads(hand_over=handing)) as threads:
            found = lives(threads, handing)
    for seed, (told, before) in enumerate(zip(found, expected, strict=True)):
        assert told == before, seed
