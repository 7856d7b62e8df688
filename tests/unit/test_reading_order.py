"""Which order of a constrained step is kept: the quicker one, until both are tried again."""

import pytest

from adapters.mlx.reading_order import NUM_KEPT, NUM_TRIED, ReadingOrder


def run(order: ReadingOrder, num_steps: int, late_s: float, early_s: float) -> list[bool]:
    """How each step was read."""
    told: list[bool] = []
    for _ in range(num_steps):
        told.append(order.is_early)
        order.record(early_s if order.is_early else late_s)
    return told


@pytest.mark.parametrize(("late_s", "early_s"), [(1.0, 2.0), (2.0, 1.0)])
def test_the_quicker_order_is_kept(late_s: float, early_s: float):
    order = ReadingOrder()
    assert run(order, 2 * NUM_TRIED, late_s, early_s) == [False] * NUM_TRIED + [True] * NUM_TRIED
    assert run(order, NUM_KEPT, late_s, early_s) == [early_s < late_s] * NUM_KEPT


def test_both_are_tried_again():
    order = ReadingOrder()
    run(order, 2 * NUM_TRIED + NUM_KEPT, 2.0, 1.0)
    told = run(order, 2 * NUM_TRIED, 1.0, 2.0)
    assert sorted(told) == [False] * NUM_TRIED + [True] * NUM_TRIED
    assert run(order, NUM_KEPT, 1.0, 2.0) == [False] * NUM_KEPT


def test_a_step_that_something_else_held_up_decides_nothing():
    order = ReadingOrder()
    run(order, NUM_TRIED, 2.0, 1.0)
    order.record(100.0)
    run(order, NUM_TRIED - 1, 2.0, 1.0)
    assert order.is_early
