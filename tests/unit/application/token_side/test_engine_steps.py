"""The engine loop's plans and steps: how long a plan stands, what a step costs the interpreter, and the step clock."""

from domain.ids import RequestId
from domain.scheduling.step_values import StepClock, StepLimits, StepPace
from tests.support.call_counts import num_calls
from tests.support.engines.stepped_engine import BLOCK, GRID, SteppedEngine

LASTS, NEW = 8, 40


def decoding() -> SteppedEngine:
    """Returns an engine with two decoding rows, and budgets that last."""
    engine = SteppedEngine(limits=StepLimits(8, GRID, GRID))
    engine.guard.lasts = LASTS
    for row in range(2):
        engine.submit(f"row {row}", [100 + row, *range(20)], NEW)
    while len(ids := engine.model.open_ids()) < 2 or any(engine.model.position(id) <= 22 for id in ids):
        engine.step()
    return engine


def test_a_plan_stands_for_as_many_steps_as_its_budget_lasts() -> None:
    engine = decoding()
    before = engine.guard.num_steps
    engine.step(3 * (LASTS + 1))
    assert engine.guard.num_steps - before == 3


def test_a_new_request_ends_a_standing_plan() -> None:
    engine = decoding()
    engine.step()
    engine.submit("late", range(500, 520), 4)
    engine.step()
    assert len(engine.model.open_ids()) == 3


def test_a_cancelled_request_ends_a_standing_plan() -> None:
    engine = decoding()
    engine.step()
    engine.loop.cancel(RequestId("row 0"))
    before = engine.guard.num_steps
    engine.step()
    assert engine.guard.num_steps == before + 1
    assert len(engine.model.open_ids()) == 1


MAX_CALLS_PER_ROW = 60
"""57 when this was written, and 79 before. The memory guard is not in it."""


def calls_of_a_step(num_rows: int) -> int:
    """Of one that decodes all of them, without the model's own; over steps in which each row fills one block."""
    engine = SteppedEngine(limits=StepLimits(num_rows, GRID, GRID))
    for row in range(num_rows):
        engine.submit(f"row {row}", [100 + row, *range(20)], 200)
    open_ids = frozenset[object]()
    while len(open_ids) < num_rows or any(engine.model.position(id) <= 21 for id in engine.model.open_ids()):
        engine.step()
        open_ids = engine.model.open_ids()
    ids = sorted(engine.model.open_ids())
    steps = sum(num_calls(engine.loop.step) for _ in range(BLOCK)) // BLOCK
    return steps - num_calls(lambda: engine.model.decode(ids))


def test_each_row_costs_the_same_few_calls() -> None:
    few, some, many = (calls_of_a_step(num_rows) for num_rows in (4, 20, 36))
    assert (some - few) / 16 <= MAX_CALLS_PER_ROW
    assert abs((many - some) - (some - few)) <= 16


MS = 1_000_000


def test_decode_steps_since_the_last_turn_are_summed_up() -> None:
    clock = StepClock()
    for _ in range(3):
        clock.decoded(10 * MS)
    clock.prefilled(400 * MS)
    assert clock.pace == StepPace(1, turn_s=0.4, step_s=0.01)
    clock.decoded(10 * MS)
    clock.decoded(12 * MS)
    assert clock.pace == StepPace(1, turn_s=0.4, decode_s=0.022, num_decodes=2, step_s=0.012)
    clock.prefilled(100 * MS)
    assert clock.pace == StepPace(2, turn_s=0.1, step_s=0.012)


def test_what_the_first_step_behind_a_turn_waits_for_is_the_turns() -> None:
    clock = StepClock()
    clock.decoded(10 * MS)
    clock.prefilled(2 * MS)
    clock.decoded(95 * MS)
    assert clock.pace == StepPace(1, turn_s=0.087, decode_s=0.01, num_decodes=1, step_s=0.01)
    clock.decoded(11 * MS)
    assert clock.pace == StepPace(1, turn_s=0.087, decode_s=0.021, num_decodes=2, step_s=0.011)
    clock.prefilled(3 * MS)
    assert clock.pace == StepPace(2, turn_s=0.088, step_s=0.011)
    clock.decoded(10 * MS)
    assert clock.pace == StepPace(2, turn_s=0.003, decode_s=0.01, num_decodes=1, step_s=0.01)
