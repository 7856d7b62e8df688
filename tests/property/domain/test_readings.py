"""Readings at the starts of slices against a list of everything that happened."""

from bisect import bisect_left
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from domain.health.live_figures import Readings

SLICE_NS, NUM = 10, 4


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(0, 130))
def test_the_value_at_each_start_is_what_was_counted_before_it(steps: list[int], later: int) -> None:
    readings, times = Readings[int](SLICE_NS, NUM), list(accumulate(steps))
    for counted, at_ns in enumerate(times):
        readings.before_change(at_ns, lambda counted=counted: counted)  # type: ignore[misc]
        assert len(readings) <= NUM
    now_ns = max([*times[-1:], later])
    newest = now_ns // SLICE_NS
    starts = [bisect_left(times, number * SLICE_NS) for number in range(newest + 1 - NUM, newest + 1)]
    assert readings.starts(now_ns, len(times)) == [*starts, len(times)]


def test_a_change_that_is_reported_late_counts_in_the_newest_slice() -> None:
    readings = Readings[int](SLICE_NS, NUM)
    readings.before_change(35, lambda: 0)
    readings.before_change(9, lambda: 1)
    assert readings.starts(35, 2) == [0, 0, 0, 0, 2]
