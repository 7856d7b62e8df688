"""A plan of nothing but decoding stands for as many steps as its budget lasts, and for none in which there is anything
else to do."""

from domain.ids import RequestId
from domain.scheduling.step_values import StepLimits
from tests.support.engines.stepped_engine import GRID, SteppedEngine

LASTS, NEW = 8, 40


def engine_of(lasts: int) -> SteppedEngine:
    engine = SteppedEngine(limits=StepLimits(8, GRID, GRID))
    engine.guard.lasts = lasts
    return engine


def decoding(lasts: int) -> SteppedEngine:
    """Two rows that both decode."""
    engine = engine_of(lasts)
    for row in range(2):
        engine.submit(f"row {row}", [100 + row, *range(20)], NEW)
    while len(ids := engine.model.open_ids()) < 2 or any(engine.model.position(id) <= 22 for id in ids):
        engine.step()
    return engine


def test_it_is_made_anew_when_it_has_stood_for_so_many_steps() -> None:
    engine = decoding(LASTS)
    before = engine.guard.num_steps
    engine.step(3 * (LASTS + 1))
    assert engine.guard.num_steps - before == 3


def test_who_comes_is_planned_for_in_the_next_step() -> None:
    engine = decoding(LASTS)
    engine.step()
    engine.submit("late", range(500, 520), 4)
    engine.step()
    assert len(engine.model.open_ids()) == 3


def test_who_is_cancelled_is_decoded_no_more() -> None:
    engine = decoding(LASTS)
    engine.step()
    engine.loop.cancel(RequestId("row 0"))
    before = engine.guard.num_steps
    engine.step()
    assert engine.guard.num_steps == before + 1
    assert len(engine.model.open_ids()) == 1
