"""What a step asks of the interpreter for each row, beside what the model does: the same however many there are."""

from domain.scheduling.step_values import StepLimits
from tests.support.engines.call_counts import num_calls
from tests.support.engines.stepped_engine import GRID, SteppedEngine

MAX_CALLS_PER_ROW = 60
"""57 when this was written, and 79 before. The memory guard is not in it."""


def calls_of_a_step(num_rows: int) -> int:
    """Of one that decodes all of them and fills no block, without the model's own."""
    engine = SteppedEngine(limits=StepLimits(num_rows, GRID, GRID))
    for row in range(num_rows):
        engine.submit(f"row {row}", [100 + row, *range(20)], 200)
    open_ids = frozenset[object]()
    while len(open_ids) < num_rows or any(engine.model.position(id) <= 21 for id in engine.model.open_ids()):
        engine.step()
        open_ids = engine.model.open_ids()
    ids = sorted(engine.model.open_ids())
    steps = min(num_calls(engine.loop.step) for _ in range(3))
    return steps - num_calls(lambda: engine.model.decode(ids))


def test_each_row_costs_the_same_few_calls() -> None:
    few, some, many = (calls_of_a_step(num_rows) for num_rows in (4, 20, 36))
    assert (some - few) / 16 <= MAX_CALLS_PER_ROW
    assert abs((many - some) - (some - few)) <= 16
