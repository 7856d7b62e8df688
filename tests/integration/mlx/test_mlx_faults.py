"""A failure on MLX costs the row that it happened to, and holds no memory afterwards."""

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx import batch
from adapters.mlx.caches import rows
from adapters.mlx.caches.leaves import Caches, leaves
from adapters.mlx.caches.rows import append_rows
from adapters.mlx.engine import MlxEngine
from adapters.mlx.loading.assembly import assemble
from adapters.mlx.loading.network import ModelFacts
from adapters.mlx.model import MlxModel
from application.ports.compute import DecodeStart, Draft
from application.services.faults import bare
from domain.errors import ComputeFailed, DomainError, ModelLoadFailed
from domain.ids import ModelId, SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.sampling import SamplingParams
from tests.support.engines.finish_load import finish_load
from tests.support.frozen_tests import really_freezing
from tests.support.mlx.tiny_heads import head_folder, load_head
from tests.support.mlx.tiny_models import build, config_of, tiny_model, write_folder
from tests.support.stores.state_replay import continue_greedy, new_id, open_at, prompt_of, start_greedy


class OddNetwork:
    """Leaves the last layer of `odd` caches in a shape that fits no other row's, after their next step alone."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.odd: object = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        logits = self._network(tokens, cache=cache)
        if cache is self.odd:
            last = list(leaves(cache))[-1]
            last.keys = mx.concatenate([last.keys, last.keys], axis=1)
            last.values = mx.concatenate([last.values, last.values], axis=1)
        return logits


def loaded(network: Any, family: str) -> MlxModel:
    return finish_load(assemble(network, ModelId("tiny"), ModelFacts(config_of(family))))


def prompts_of(count: int) -> list[tuple[int, ...]]:
    return [prompt_of(40 + index, index) for index in range(count)]


def answers(model: MlxModel, prompts: Sequence[tuple[int, ...]], num_new: int) -> list[list[int]]:
    """Of each prompt alone."""
    return [continue_greedy(model, open_at(model, prompt), prompt, num_new) for prompt in prompts]


def begun(model: MlxModel, prompts: Sequence[tuple[int, ...]]) -> list[SequenceId]:
    ids = [open_at(model, prompt) for prompt in prompts]
    for id, prompt in zip(ids, prompts, strict=True):
        start_greedy(model, id, prompt)
    return ids


def run(
    model: MlxModel, ids: list[SequenceId], num_steps: int
) -> tuple[dict[SequenceId, list[int]], dict[SequenceId, str]]:
    """Decode until all have ended: tokens and errors by sequence."""
    output: dict[SequenceId, list[int]] = {id: [] for id in ids}
    errors: dict[SequenceId, str] = {}
    for _ in range(num_steps):
        for result in model.decode([id for id in ids if id not in errors]):
            if result.error is not None:
                assert isinstance(result.error, ComputeFailed)
                errors[result.id] = str(result.error)
            else:
                output[result.id].append(result.token_ids[0])
    return output, errors


@pytest.mark.parametrize(
    ("family", "num_others"), [("llama", 1), ("llama", 3), ("gemma3_text", 2), ("falcon_h1", 1), ("falcon_h1", 3)]
)
def test_a_row_that_cannot_join_is_its_own_failure(family: str, num_others: int) -> None:
    network = OddNetwork(build(family))
    model = loaded(network, family)
    prompts = prompts_of(num_others)
    expected = answers(model, prompts, 8)
    ids = begun(model, prompts)
    before, errors = run(model, ids, 3)
    assert errors == {}
    prompt = prompt_of(43, 9)
    odd = open_at(model, prompt)
    start_greedy(model, odd, prompt)
    network.odd = model._rows[odd].caches
    after, errors = run(model, [*ids, odd], 5)
    assert set(errors) == {odd}
    assert [before[id] + after[id] for id in ids] == expected
    assert model.open_ids() == frozenset(ids)
    model.close(ids)


class Joins:
    """`append_rows`, counted, whose first `num_failing` calls fail for lack of memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_failing: int) -> None:
        self.sizes: list[int] = []
        self._num_failing = num_failing
        monkeypatch.setattr(batch, "append_rows", self)

    def __call__(self, target: Caches, num_rows: int, rows: Sequence[Caches], capacity: int) -> None:
        self.sizes.append(len(rows))
        if len(self.sizes) <= self._num_failing:
            raise RuntimeError("no memory for a longer batch")
        append_rows(target, num_rows, rows, capacity)


def test_a_row_that_could_not_join_goes_on_alone_and_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three want to join a fourth at once, then each for itself, of which the first fails again."""
    model, joins = tiny_model("llama"), Joins(monkeypatch, num_failing=2)
    prompts = prompts_of(5)
    expected = answers(model, prompts, 6)
    ids = begun(model, prompts)
    output, errors = run(model, ids[:4], 6)
    assert (errors, joins.sizes) == ({}, [3, 1, 1, 1])
    model.close(ids[2:4])
    late, errors = run(model, [ids[0], ids[1], ids[4]], 6)
    assert (errors, joins.sizes[4:]) == ({}, [1]), "a row alone is neither tried again nor joined"
    assert [output[id] for id in ids[:4]] == expected[:4]
    assert late[ids[4]] == expected[4]
    model.close([*ids[:2], ids[4]])


def test_a_row_that_is_lost_between_two_batches_is_the_only_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first layers are in the batch when a later one does not fit, and there is no memory to take them out."""

    def no_memory(*_arguments: object) -> object:
        raise RuntimeError("no memory to take a row out")

    network = OddNetwork(build("llama"))
    model = loaded(network, "llama")
    prompts = prompts_of(3)
    expected = answers(model, prompts, 8)
    ids = [open_at(model, prompt) for prompt in prompts]
    for id, prompt in zip(ids[:2], prompts, strict=False):
        start_greedy(model, id, prompt)
    before, errors = run(model, ids[:2], 3)
    assert errors == {}
    start_greedy(model, ids[2], prompts[2])
    network.odd = model._rows[ids[2]].caches
    monkeypatch.setattr(rows, "_taken", no_memory)
    after, errors = run(model, ids, 5)
    assert list(errors) == [ids[2]]
    assert "joining a batch failed" in errors[ids[2]]
    assert [before[id] + after[id] for id in ids[:2]] == expected[:2]
    assert model.open_ids() == frozenset(ids[:2])
    model.close(ids[:2])


# ---- memory --------------------------------------------------------------------------------------------------------


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No collection runs by itself: objects are freed by their reference counts, or by an explicit collection."""
    with really_freezing():
        gc.collect()
        gc.freeze()
        gc.disable()
        yield
        gc.enable()


def _infinite(folder: Path) -> None:
    """Found out by the probe, when all weights have been read."""
    weights = dict(mx.load(str(folder / "model.safetensors")).items())
    weights["model.norm.weight"] = weights["model.norm.weight"] * mx.inf
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)


def _lacking(folder: Path) -> None:
    """Found out by the strict comparison of names."""
    weights = dict(mx.load(str(folder / "model.safetensors")).items())
    weights.pop("model.norm.weight")
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)


@pytest.mark.parametrize(("damage", "words"), [(_infinite, "infinities or NaN"), (_lacking, "norm")])
def test_a_failed_load_names_the_fault_and_holds_nothing_while_its_error_is_kept(
    tmp_path: Path, damage: Any, words: str, uncollected: None
) -> None:
    folder = write_folder("qwen3", tmp_path / "broken")
    damage(folder)
    engine, source = MlxEngine(), ModelSource(ModelId("broken"), str(folder))
    gc.collect()
    before = mx.get_active_memory()
    kept: list[Exception] = []
    for _ in range(3):
        with pytest.raises(ModelLoadFailed, match=words) as caught:
            finish_load(engine.load(source, LoadOptions()))
        kept.append(caught.value)
        assert mx.get_active_memory() <= before + 4096
        assert mx.get_cache_memory() == 0
    assert len(kept) == 3


def test_unloading_frees_a_model_that_collections_leave_out(tmp_path: Path, uncollected: None) -> None:
    folder = write_folder("qwen3", tmp_path / "whole")
    engine, source = MlxEngine(), ModelSource(ModelId("whole"), str(folder))
    gc.collect()
    before = mx.get_active_memory()
    for _ in range(2):
        model = finish_load(engine.load(source, LoadOptions()))
        assert mx.get_active_memory() > before + model.description.weight_bytes // 2
        prompt = prompt_of(50)
        continue_greedy(model, open_at(model, prompt), prompt, 4)
        engine.unload(model)
        assert mx.get_active_memory() <= before + 4096


class FailingLate:
    """Raises at the end of a forward pass, when the cache holds what it computed: of each while `is_failing`, or of the
    one after `num_good` more."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.is_failing = False
        self.num_good: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        logits = self._network(tokens, cache=cache)
        mx.eval(logits)
        if self.num_good is not None:
            self.num_good -= 1
        if self.is_failing or self.num_good == -1:
            raise RuntimeError("the device is on fire")
        return logits


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize(("family", "num_good"), [("llama", 0), ("falcon_h1", 0), ("falcon_h1", 1)])
def test_a_verification_that_fails_loses_the_state_and_gives_no_wrong_token(
    family: str, num_good: int, num_rows: int
) -> None:
    """The pass itself fails, or the one that feeds the accepted tokens once more."""
    network = FailingLate(build(family))
    model = loaded(network, family)
    prompts = prompts_of(num_rows)
    expected = answers(model, prompts, 8)
    ids = begun(model, prompts)
    before, errors = run(model, ids, 3)
    assert errors == {}
    network.num_good = num_good
    drafts = {id: Draft((*answer[3:5], (answer[5] + 1) % 100)) for id, answer in zip(ids, expected, strict=True)}
    last = {result.id: list(result.token_ids) for result in model.decode(ids, drafts)}
    for id, answer in zip(ids, expected, strict=True):
        assert before[id] + last[id] == answer[: 3 + len(last[id])]
        with pytest.raises(ComputeFailed, match="lost"):
            model.capture_snapshot(id, 0)
    assert model.keep_live(ids[0]) is None
    _, errors = run(model, ids[1:], 1)
    assert set(errors) == set(ids[1:])
    assert not model.open_ids()


def test_a_failing_forward_pass_ends_its_group_and_nothing_else() -> None:
    network = FailingLate(build("llama"))
    model, prompts = loaded(network, "llama"), [*prompts_of(2), prompt_of(2000)]
    expected = answers(model, prompts[2:], 6)[0]
    ids = begun(model, prompts)
    output, errors = run(model, ids, 2)  # the first tokens, and the step in which rows join
    assert errors == {}
    network.num_good = 0  # the next step of the first two
    after, errors = run(model, ids, 4)
    assert set(errors) == set(ids[:2])
    assert all("on fire" in error for error in errors.values())
    assert model.open_ids() == {ids[2]}
    assert output[ids[2]] + after[ids[2]] == expected
    model.close(ids[2:])


def test_a_drafter_that_fails_ends_the_rows_of_its_batch_only(tmp_path: Path) -> None:
    def failing(*_arguments: object) -> mx.array:
        raise RuntimeError("the drafter's layer is on fire")

    model = load_head(head_folder("mimo", tmp_path / "m"))
    prompts = prompts_of(2)
    expected = answers(model, prompts, 3)
    ids = [open_at(model, prompt) for prompt in prompts]
    start_greedy(model, ids[0], prompts[0])
    before, errors = run(model, ids[:1], 2)
    assert (errors, before[ids[0]]) == ({}, expected[0][:2])
    start_greedy(model, ids[1], prompts[1])
    model._network.module._step = failing
    first, other = model.decode(ids, {ids[0]: Draft((), 3)})
    assert "drafting failed" in str(first.error)
    assert list(other.token_ids) == expected[1][:1]
    assert model.open_ids() == {ids[1]}
    after, errors = run(model, ids[1:], 2)
    assert (errors, after[ids[1]]) == ({}, expected[1][1:])
    model.close(ids[1:])


@pytest.mark.parametrize("operation", ["prefill", "start_decode", "decode"])
def test_a_failed_sequence_holds_nothing(operation: str, uncollected: None) -> None:
    """As the engine loop keeps its error: bare."""
    network = FailingLate(build("llama"))
    model = loaded(network, "llama")
    prompt = prompt_of(600)
    errors: list[DomainError] = []

    def fail() -> None:
        id = new_id()
        model.open(id)
        network.is_failing = operation == "prefill"
        model.prefill(id, prompt[:500])
        network.is_failing = operation == "start_decode"
        model.start_decode(id, prompt[500:], DecodeStart(prompt, SamplingParams(temperature=0), seed=1))
        model.decode([id])
        network.is_failing = True
        (result,) = model.decode([id])
        if result.error is not None:
            raise result.error

    for number in range(4):
        try:
            fail()
        except ComputeFailed as error:
            errors.append(bare(error))
        if number == 0:
            before = mx.get_active_memory()
    assert len(errors) == 4
    assert not model.open_ids()
    assert mx.get_active_memory() <= before


def test_a_batch_lost_while_rows_leave_and_others_pause_is_the_only_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch of four one row ends, and there is no memory to drop it, in a step without another of its rows."""

    def no_memory(*_arguments: object) -> None:
        raise RuntimeError("no memory for a shorter batch")

    model = tiny_model("llama")
    prompts = prompts_of(5)
    expected = continue_greedy(model, open_at(model, prompts[4]), prompts[4], 6)
    ids = begun(model, prompts)
    run(model, ids[:4], 3)
    alone, errors = run(model, ids[4:], 3)
    assert errors == {}
    monkeypatch.setattr(batch, "keep_rows", no_memory)
    monkeypatch.setattr(batch, "take_row", no_memory)
    model.close(ids[:1])
    after, errors = run(model, [*ids[1:3], ids[4]], 3)
    assert set(errors) == set(ids[1:3])
    assert alone[ids[4]] + after[ids[4]] == expected
    _, errors = run(model, ids[3:], 1)
    assert set(errors) == {ids[3]}, "the row that paused learns of it in its next step"
    assert model.open_ids() == {ids[4]}
    model.close(ids[4:])
