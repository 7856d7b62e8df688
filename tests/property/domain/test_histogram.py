"""Quantiles of a histogram against those of the sorted list, and its bound."""

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from domain.health.live_figures import LONGEST_S, SHORTEST_S, Counts, bucket_of, quantiles

seconds = st.floats(SHORTEST_S, LONGEST_S)
SHARES = (0.0, 0.5, 0.9, 0.99, 1.0)


def buckets_of(values: list[float]) -> Counter[int]:
    return Counter(map(bucket_of, values))


@given(st.lists(seconds, min_size=1, max_size=60))
def test_a_quantile_is_as_near_as_it_says(values: list[float]) -> None:
    ordered = sorted(values)
    found = quantiles(buckets_of(values), *SHARES)
    for share, quantile in zip(SHARES, found, strict=True):
        exact = ordered[max(1, math.ceil(share * len(values))) - 1]
        assert quantile is not None
        assert abs(quantile - exact) <= exact * (1.04**0.5 - 1 + 1e-9), "half a bucket"


@given(st.lists(seconds, max_size=30), st.lists(seconds, max_size=30))
def test_a_window_is_the_difference_of_two_readings(before: list[float], within: list[float]) -> None:
    counts = Counts(inter_token=buckets_of(before))
    earlier = counts.copy()
    counts.inter_token.update(buckets_of(within))
    assert counts.since(earlier).inter_token == buckets_of(within)
    assert earlier.inter_token == buckets_of(before)


def test_nothing_has_no_quantiles() -> None:
    assert quantiles({}, 0.5, 0.9) == (None, None)


def test_what_is_out_of_range_counts_as_the_nearest() -> None:
    low, high = quantiles(buckets_of([0.0, -1.0, 1e-9, 1e9, 1e9, 1e9]), 0.5, 1.0)
    assert low == SHORTEST_S
    assert high is not None
    assert abs(high - LONGEST_S) <= LONGEST_S * 0.04


def test_the_buckets_are_bounded_whatever_comes() -> None:
    found = buckets_of([1e-7 * 1.0003**n for n in range(100_000)])
    assert found.total() == 100_000
    assert len(found) <= 504
