"""Grouping bounds what padding costs, and rows keep their places."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.memory.shape import MemoryShape, StateCost
from domain.scheduling.decode_groups import FREE_PADDING, choose_group, padding_bytes, rows_capacity, rows_in_place

GB = 10**9


def shape_of(weights: int, token: int, window: int, fixed: int) -> MemoryShape:
    states = (StateCost(token, step=1), StateCost(token, window, fixed, step=1))
    return MemoryShape(weight_bytes=weights, states=states)


shapes = st.builds(
    shape_of, st.integers(0, 20 * GB), st.integers(0, 200_000), st.integers(1, 5000), st.integers(0, 10**8)
)


@given(st.lists(st.integers(1, 100_000), max_size=24), shapes)
def test_padding_stays_bounded_however_sequences_arrive(lengths: list[int], shape: MemoryShape) -> None:
    groups: list[list[int]] = []
    for length in lengths:
        chosen = choose_group(length, groups, shape)
        if chosen is None:
            groups.append([length])
        else:
            groups[chosen].append(length)
    for rows in groups:
        is_free = max(rows) * len(rows) - sum(rows) <= FREE_PADDING * len(rows)
        padding, held = padding_bytes(rows, shape), sum(shape.state_bytes(length) for length in rows)
        assert is_free or padding <= shape.weight_bytes
        assert is_free or padding <= max(held / 4, shape.weight_bytes / 8)


def test_a_second_pass_over_large_weights_costs_more_than_some_padding() -> None:
    eight_b = MemoryShape(weight_bytes=16 * GB, states=(StateCost(131_072),))
    small = MemoryShape(weight_bytes=GB // 2, states=(StateCost(131_072),))
    assert choose_group(8000, [[100]], eight_b) == 0
    assert choose_group(8000, [[100]], small) is None
    assert choose_group(100_000, [[100]], eight_b) is None
    assert choose_group(17_000, [[15_000] * 30], eight_b) == 0
    assert choose_group(20_000, [[15_000] * 30], eight_b) is None
    assert choose_group(400, [[128, 128, 128]], small) == 0
    assert choose_group(130, [[60_000], [], [100]], small) == 2


@pytest.mark.parametrize("state", [StateCost(0, fixed_bytes=10**8, step=1), StateCost(10**5, window=128, step=1)])
def test_states_that_do_not_grow_are_never_padded(state: StateCost) -> None:
    shape = MemoryShape(weight_bytes=GB, states=(state,))
    assert padding_bytes([200, 100_000], shape) == 0
    assert choose_group(100_000, [[200]], shape) == 0


@given(st.integers(1, 40).flatmap(lambda count: st.tuples(st.just(count), st.sets(st.integers(0, count - 1)))))
def test_rows_stay_where_they_are_and_holes_are_filled_from_behind(given_rows: tuple[int, set[int]]) -> None:
    num_rows, kept = given_rows
    order = rows_in_place(num_rows, sorted(kept))
    assert sorted(order) == sorted(kept)
    assert all(row == place or row >= len(kept) > place for place, row in enumerate(order))


@given(st.integers(1, 500))
def test_room_for_more_rows_is_a_share_of_the_rows(num_rows: int) -> None:
    assert num_rows <= rows_capacity(num_rows) <= num_rows * 1.125
