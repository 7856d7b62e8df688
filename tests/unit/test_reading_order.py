"""Which order of a constrained step is kept: the quickest one, until all are tried again."""

import pytest

from adapters.mlx.reading_order import NUM_IN_TRIAL, NUM_KEPT, NUM_TRIED, Reading, ReadingOrder

SLOW = {reading: 2.0 for reading in Reading}


def run(order: ReadingOrder, num_steps: int, step_s: dict[Reading, float]) -> list[Reading]:
    """How each step was read."""
    told: list[Reading] = []
    for _ in range(num_steps):
        told.append(order.reading)
        order.record(order.reading, step_s[order.reading])
    return told


def begun() -> ReadingOrder:
    """One whose first turn, which takes ever so long, is over."""
    order = ReadingOrder()
    assert run(order, NUM_TRIED, {reading: 100.0 for reading in Reading}) == [Reading.LATE] * NUM_TRIED
    return order


@pytest.mark.parametrize("best", Reading)
def test_the_quickest_order_is_kept(best: Reading):
    order = begun()
    tried = run(order, NUM_IN_TRIAL, SLOW | {best: 1.0})
    assert [tried.count(reading) for reading in Reading] == [NUM_IN_TRIAL // len(Reading)] * len(Reading)
    assert run(order, NUM_KEPT, SLOW | {best: 1.0}) == [best] * NUM_KEPT


def test_what_is_hardly_quicker_is_left():
    order = begun()
    hardly = SLOW | {Reading.AT_ONCE: 1.9, Reading.EARLY: 1.95}
    run(order, NUM_IN_TRIAL, hardly)
    assert run(order, NUM_KEPT, hardly) == [Reading.LATE] * NUM_KEPT


def test_all_are_tried_again():
    order = begun()
    run(order, NUM_IN_TRIAL + NUM_KEPT, SLOW | {Reading.EARLY: 1.0})
    assert set(run(order, NUM_IN_TRIAL, SLOW | {Reading.AT_ONCE: 1.0})) == set(Reading)
    assert run(order, NUM_KEPT, SLOW) == [Reading.AT_ONCE] * NUM_KEPT


def test_steps_that_something_else_held_up_decide_nothing():
    order = begun()
    for number in range(NUM_IN_TRIAL):
        held_up_s = 100.0 if number in (NUM_TRIED + 2, NUM_IN_TRIAL - 1) else 0.0
        order.record(order.reading, held_up_s + (1.0 if order.reading is Reading.EARLY else 2.0))
    assert order.reading is Reading.EARLY


def test_the_steps_of_many_groups_go_through_several_turns_at_once():
    order = begun()
    while order.reading is Reading.LATE:
        order.record(Reading.LATE, 1.0)
    for _ in range(NUM_IN_TRIAL):
        order.record(Reading.LATE, 1.0)
    assert order.reading is Reading.LATE
