"""The costs of passes by rows and width: measured once, remembered by the model's content."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from adapters.mlx.loading.assembly import assemble
from adapters.mlx.loading.network import ModelFacts
from adapters.mlx.loading.width_costs import MOST_S, ROUNDS, find_costs
from adapters.mlx.memory import MeasuredFile
from adapters.mlx.model import MlxModel
from application.ports.compute import NO_DRAFTS, DecodeResult, Draft
from application.services.lane import Lane
from domain.ids import ModelId, SequenceId
from domain.speculation.gain import WIDTHS, WidthCosts
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.tiny_heads import head_folder, load_head
from tests.support.mlx.tiny_models import build, config_of, tiny_model
from tests.support.patience import PATIENCE_S


@pytest.fixture
def lane() -> Iterator[Lane]:
    lane = Lane("weights", 1)
    yield lane
    lane.close()
    assert lane.join(PATIENCE_S)


@pytest.fixture(scope="module")
def model() -> MlxModel:
    return tiny_model("llama")


def ticking(step_s: float) -> Callable[[], float]:
    """A clock that goes on by `step_s` each time it is read."""
    times = iter(range(1_000_000))
    return lambda: step_s * next(times)


def found_costs(
    model: MlxModel,
    folder: Path,
    lane: Lane,
    *,
    content: str = "content",
    step_s: float = 1e-3,
    room_bytes: int | None = None,
) -> WidthCosts | None:
    file, clock = MeasuredFile(folder, lane), ticking(step_s)
    return finish_load(find_costs(model, file, content, room_bytes=room_bytes, clock=clock))


@pytest.mark.parametrize(
    ("family", "refeeds"),
    [("llama", False), ("minimax_m3_vl", False), ("qwen3_next", True), ("gemma3", True)],
    ids=["in a batch", "one by one", "recurrent", "windowed"],
)
def test_each_width_is_measured_for_one_row_and_for_several(
    family: str, refeeds: bool, tmp_path: Path, lane: Lane
) -> None:
    model = tiny_model(family)
    costs = found_costs(model, tmp_path, lane, step_s=MOST_S)
    assert costs is not None
    assert ([len(by_width) for by_width in costs.pass_ms], costs.refeeds) == ([len(WIDTHS)] * 2, refeeds)
    assert {round(cost) for by_width in costs.pass_ms for cost in by_width} == {1e3 * MOST_S}
    assert costs.draft_ms == 0
    assert not model.open_ids()


def test_drafting_is_measured_where_the_model_has_a_drafter(
    tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes 1 ms, and 2 ms more where the drafter proposes four tokens."""
    model, now_ms = load_head(head_folder("mimo", tmp_path / "m")), [0]
    decode = model.decode

    def timed(ids: Sequence[SequenceId], drafts: Mapping[SequenceId, Draft] = NO_DRAFTS) -> Sequence[DecodeResult]:
        now_ms[0] += 3 if any(draft.depth for draft in drafts.values()) else 1
        return decode(ids, drafts)

    monkeypatch.setattr(model, "decode", timed)
    file = MeasuredFile(tmp_path, lane)
    costs = finish_load(find_costs(model, file, "content", clock=lambda: now_ms[0] / 1e3))
    assert costs is not None
    assert costs.draft_ms == pytest.approx(0.5)


def test_a_slow_model_is_measured_once(model: MlxModel, tmp_path: Path, lane: Lane) -> None:
    """And its costs are remembered like others."""
    slow = [found_costs(model, tmp_path, lane, step_s=step_s) for step_s in (MOST_S, 1e-3)]
    assert [costs and round(costs.cost(rows, 17)) for costs in slow for rows in (1, 4)] == [round(1e3 * MOST_S)] * 4


@pytest.mark.parametrize("width", [1, 5])
def test_one_step_that_was_lucky_or_disturbed_decides_nothing(
    width: int, model: MlxModel, tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps take 4 ms, but those of one width 1 ms in the first round and 90 ms in the second."""
    decode, open, now_ms, rounds = model.decode, model.open, [0], [0]

    def timed(ids: Sequence[SequenceId], drafts: Mapping[SequenceId, Draft] = NO_DRAFTS) -> Sequence[DecodeResult]:
        is_odd = width == max((len(draft.token_ids) for draft in drafts.values()), default=1)
        now_ms[0] += (4, 1, 90, 4, 4)[rounds[0] % ROUNDS] if is_odd else 4
        return decode(ids, drafts)

    def counted(id: SequenceId) -> None:
        rounds[0] += id == SequenceId(-2)
        open(id)

    monkeypatch.setattr(model, "decode", timed)
    monkeypatch.setattr(model, "open", counted)
    file = MeasuredFile(tmp_path, lane)
    costs = finish_load(find_costs(model, file, "content", clock=lambda: now_ms[0] / 1e3))
    assert costs is not None
    assert {round(cost) for by_width in costs.pass_ms for cost in by_width} == {4}


def test_costs_are_remembered_by_content(model: MlxModel, tmp_path: Path, lane: Lane) -> None:
    first, again, other = (
        found_costs(model, tmp_path, lane, content=content, step_s=step_s)
        for content, step_s in (("a", 5e-3), ("a", 1e-3), ("b", 3e-3))
    )
    assert [costs and round(costs.cost(1, 1), 3) for costs in (first, again, other)] == [5.0, 5.0, 3.0]
    assert first == again


@pytest.mark.parametrize(
    "entry", [None, 1, [], [[], 0.0], [[[1.0] * 6] * 2, "x"], [[["x"] * 6] * 2, 0.0], [[[-1.0] * 6] * 2, 0.0]]
)
def test_an_invalid_entry_is_measured_again(model: MlxModel, tmp_path: Path, lane: Lane, entry: object) -> None:
    expected, path = found_costs(model, tmp_path, lane, step_s=MOST_S), tmp_path / "measured.json"
    lane.submit(lambda: None).result(PATIENCE_S)
    (key,) = json.loads(path.read_text())
    path.write_text(json.dumps({key: entry}))
    assert found_costs(model, tmp_path, lane, step_s=MOST_S) == expected


def test_a_model_without_room_is_not_measured(model: MlxModel, tmp_path: Path, lane: Lane) -> None:
    assert found_costs(model, tmp_path, lane, room_bytes=1000) is None


@pytest.mark.parametrize(
    ("family", "vocab_size", "is_measured"),
    [("llama", 40_000, True), ("llama", 100, False), ("plamo3", 40_000, False)],
    ids=["measured", "too small", "cannot verify"],
)
def test_a_load_measures_a_model_that_may_draft(
    family: str, vocab_size: int, is_measured: bool, tmp_path: Path, lane: Lane
) -> None:
    facts = ModelFacts(config_of(family, vocab_size=vocab_size))
    file = MeasuredFile(tmp_path, lane)
    model = finish_load(assemble(build(family, vocab_size=vocab_size), ModelId(family), facts, measured=file))
    assert (model.description.width_costs is not None) is is_measured
    assert model.description.drafter_note.startswith("drafts are not used") is (family == "plamo3")
