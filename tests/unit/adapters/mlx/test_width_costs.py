"""The costs of passes by rows and width: measured once, remembered by the model's content."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapters.mlx.loading.assembly import assemble
from adapters.mlx.loading.network import ModelFacts
from adapters.mlx.loading.width_costs import COSTS_NAME, MOST_S, WIDTHS, find_costs, measure_costs
from adapters.mlx.memory import MeasuredFile
from adapters.mlx.model import MlxModel
from application.services.lane import Lane
from domain.ids import ModelId
from domain.speculation.gain import MOST_ROWS, WidthCosts
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
    step_s: float = 1e-3,
    num_bytes: int = 0,
    room_bytes: int | None = None,
) -> WidthCosts | None:
    file = MeasuredFile(folder / COSTS_NAME, lane)
    room, clock = room_bytes, ticking(step_s)
    finish_load(find_costs(model, file, does_refeed=False, room_bytes=room, num_bytes=num_bytes, clock=clock))
    return model.description.width_costs


def test_each_width_is_measured_for_one_row_and_for_several(model: MlxModel) -> None:
    costs = finish_load(measure_costs(model, True, ticking(1e-3)))
    assert costs is not None
    assert (costs.rows[0], costs.rows[-1], costs.widths, costs.refeeds) == (1, MOST_ROWS, WIDTHS, True)
    assert {round(cost, 3) for row in costs.pass_ms for cost in row} == {1.0}
    assert costs.draft_ms == 0
    assert not model.open_ids()


def test_a_model_that_decodes_alone_is_measured_alone() -> None:
    costs = finish_load(measure_costs(tiny_model("minimax_m3_vl"), False, ticking(1e-3)))
    assert costs is not None
    assert costs.rows == (1,)


def test_drafting_is_measured_where_the_model_has_a_drafter(tmp_path: Path) -> None:
    costs = finish_load(measure_costs(load_head(head_folder("mimo", tmp_path / "m")), False, ticking(1e-3)))
    assert costs is not None
    assert costs.draft_ms == pytest.approx(0.25)


def test_measuring_ends_in_time_with_what_it_has(model: MlxModel, tmp_path: Path, lane: Lane) -> None:
    """And such costs are not remembered."""
    costs = found_costs(tiny_model("llama"), tmp_path, lane, step_s=MOST_S / 9)
    assert costs is not None
    assert costs.rows == (1,)
    assert 1 < len(costs.widths) < len(WIDTHS)
    assert not (tmp_path / COSTS_NAME).exists()


def test_the_first_loads_are_measured_and_the_least_is_remembered(tmp_path: Path, lane: Lane) -> None:
    """The first load was disturbed, and the last one is not measured any more."""
    found = [found_costs(tiny_model("llama"), tmp_path, lane, step_s=step_s) for step_s in (5e-3, 1e-3, 3e-3, 1e-6)]
    plain = [costs and round(costs.cost(1, 1), 3) for costs in found]
    assert plain == [5.0, 1.0, 1.0, 1.0]
    other = found_costs(tiny_model("llama", seed=1), tmp_path, lane, step_s=5e-3)
    assert other is not None
    assert other.cost(1, 1) == pytest.approx(5.0)


@pytest.mark.parametrize(
    "entry", [None, 1, [], [[1], [1, 2], [[1.0]], 0.0, 1], [[1], [1], [["x"]], 0.0, 1], [[1], [1], [[-1]], 0, 3]]
)
def test_an_invalid_entry_is_measured_again(tmp_path: Path, lane: Lane, entry: object) -> None:
    expected = found_costs(tiny_model("llama"), tmp_path, lane)
    path = tmp_path / COSTS_NAME
    lane.submit(lambda: None).result(PATIENCE_S)
    (key,) = json.loads(path.read_text())
    path.write_text(json.dumps({key: entry}))
    assert found_costs(tiny_model("llama"), tmp_path, lane) == expected


def test_a_small_model_and_one_without_room_are_not_measured(model: MlxModel, tmp_path: Path, lane: Lane) -> None:
    assert found_costs(model, tmp_path, lane, num_bytes=model.description.weight_bytes + 1) is None
    assert found_costs(model, tmp_path, lane, room_bytes=1000) is None


@pytest.mark.parametrize(("family", "is_measured"), [("llama", True), ("plamo3", False)])
def test_a_model_that_cannot_verify_is_not_measured(family: str, is_measured: bool, tmp_path: Path, lane: Lane) -> None:
    large = {"vocab_size": 40_000}
    facts = ModelFacts(config_of(family, **large))
    file = MeasuredFile(tmp_path / COSTS_NAME, lane)
    model = finish_load(assemble(build(family, **large), ModelId(family), facts, costs=file))
    assert (model.description.width_costs is not None) is is_measured
    assert model.description.drafter_note.startswith("drafts are not used") is not is_measured
