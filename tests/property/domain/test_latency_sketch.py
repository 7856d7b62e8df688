"""Quantiles of a sketch against those of the sorted list, and its bound."""

import math

from hypothesis import given
from hypothesis import strategies as st

from domain.health.live_figures import LONGEST_S, SHORTEST_S, LatencySketch

seconds = st.floats(SHORTEST_S, LONGEST_S)
SHARES = (0.0, 0.5, 0.9, 0.99, 1.0)


def sketch_of(values: list[float]) -> LatencySketch:
    sketch = LatencySketch()
    for value in values:
        sketch.add(value)
    return sketch


@given(st.lists(seconds, min_size=1, max_size=60))
def test_a_quantile_is_as_near_as_it_says(values: list[float]) -> None:
    ordered = sorted(values)
    found = sketch_of(values).quantiles(*SHARES)
    for share, quantile in zip(SHARES, found, strict=True):
        exact = ordered[max(1, math.ceil(share * len(values))) - 1]
        assert quantile is not None
        assert abs(quantile - exact) <= exact * (1.04**0.5 - 1 + 1e-9), "half a bucket"


@given(st.lists(seconds, max_size=30), st.lists(seconds, max_size=30))
def test_two_sketches_as_one_are_the_sketch_of_both(left: list[float], right: list[float]) -> None:
    whole, both = LatencySketch.of([sketch_of(left), sketch_of(right)]), sketch_of(left + right)
    assert whole.num == both.num == len(left) + len(right)
    assert whole.quantiles(*SHARES) == both.quantiles(*SHARES)


def test_what_is_added_later_counts() -> None:
    sketch = sketch_of([1.0])
    assert sketch.quantiles(0.5, 1.0)[1] == sketch.quantiles(1.0)[0]
    sketch.add(100.0)
    low, high = sketch.quantiles(0.5, 1.0)
    assert low is not None
    assert high is not None
    assert low < 2 < 90 < high


def test_nothing_has_no_quantiles() -> None:
    assert LatencySketch().quantiles(0.5, 0.9) == (None, None)


def test_what_is_out_of_range_counts_as_the_nearest() -> None:
    sketch = sketch_of([0.0, -1.0, 1e-9])
    sketch.add(1e9, times=3)
    low, high = sketch.quantiles(0.5, 1.0)
    assert (low, sketch.num) == (SHORTEST_S, 6)
    assert high is not None
    assert abs(high - LONGEST_S) <= LONGEST_S * 0.04


def test_the_buckets_are_bounded_whatever_comes() -> None:
    sketch = sketch_of([1e-7 * 1.0003**n for n in range(100_000)])
    assert sketch.num == 100_000
    assert len(sketch._counts) <= 504
