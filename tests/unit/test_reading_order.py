"""Which order of a constrained step is kept: the quicker one, until both are tried again."""

import pytest

from adapters.mlx.reading_order import NUM_KEPT, NUM_TRIED, NUM_TURNS, ReadingOrder

TRIAL = NUM_TURNS * NUM_TRIED


def run(order: ReadingOrder, num_steps: int, late_s: float, early_s: float) -> list[bool]:
    """How each step was read."""
    told: list[bool] = []
    for _ in range(num_steps):
        told.append(order.is_early)
        order.record(early_s if order.is_early else late_s)
    return told


def begun() -> ReadingOrder:
    """One whose first turn, which takes ever so long, is over."""
    order = ReadingOrder()
    assert run(order, NUM_TRIED, 100.0, 100.0) == [False] * NUM_TRIED
    return order


@pytest.mark.parametrize(("late_s", "early_s"), [(1.0, 2.0), (2.0, 1.0)])
def test_the_quicker_order_is_kept(late_s: float, early_s: float):
    order = begun()
    assert run(order, TRIAL, late_s, early_s) == ([False] * NUM_TRIED + [True] * NUM_TRIED) * 2
    assert run(order, NUM_KEPT, late_s, early_s) == [early_s < late_s] * NUM_KEPT


def test_both_are_tried_again():
    order = begun()
    run(order, TRIAL + NUM_KEPT, 2.0, 1.0)
    assert sorted(run(order, TRIAL, 1.0, 2.0)) == [False] * (TRIAL // 2) + [True] * (TRIAL // 2)
    assert run(order, NUM_KEPT, 1.0, 2.0) == [False] * NUM_KEPT


def test_steps_that_something_else_held_up_decide_nothing():
    order = begun()
    for number in range(TRIAL):
        held_up_s = 100.0 if number in (2, TRIAL - 1) else 0.0
        order.record(held_up_s + (1.0 if order.is_early else 2.0))
    assert order.is_early
