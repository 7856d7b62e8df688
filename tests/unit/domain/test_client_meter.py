"""What a client has used: tokens that come back with time, places that come back when they are given back."""

from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.client import Client, ClientMeter
from domain.errors import InvalidRequest, LimitReached, QueueFull

SECOND_NS = 1_000_000_000
START_NS = 77 * SECOND_NS


def meter(per_minute: int | None = None, at_once: int | None = None) -> ClientMeter:
    return ClientMeter(Client("ci", requests_per_minute=per_minute, max_concurrent=at_once))


def test_a_full_bucket_is_a_minute_s_requests_and_one_comes_back_at_a_time() -> None:
    tested = meter(per_minute=6)
    assert tested.allowance(START_NS) == (6, 6, 0)
    for _ in range(6):
        tested.charge(1, START_NS)
    assert tested.allowance(START_NS) == (6, 0, 60 * SECOND_NS)
    with pytest.raises(LimitReached, match="6 requests a minute") as refused:
        tested.charge(1, START_NS + 3 * SECOND_NS)
    assert refused.value.retry_after_s == 7
    tested.charge(1, START_NS + 10 * SECOND_NS)
    with pytest.raises(LimitReached):
        tested.charge(1, START_NS + 10 * SECOND_NS)
    assert tested.allowance(START_NS + 3600 * SECOND_NS) == (6, 6, 0)


@given(
    st.integers(1, 1_000_000),
    st.lists(st.tuples(st.integers(0, 90 * SECOND_NS), st.integers(1, 40), st.integers(0, 1)), max_size=60),
)
def test_waiting_as_told_is_enough_and_no_window_holds_more_than_its_share(
    per_minute: int, asked: list[tuple[int, int, int]]
) -> None:
    tested, now_ns, num_granted = meter(per_minute=per_minute), START_NS, 0
    for pause_ns, num, num_paid in asked:
        now_ns += pause_ns
        try:
            tested.charge(num, now_ns, num_paid=num_paid)
            num_granted += max(0, num - num_paid)
        except LimitReached as refused:
            later_ns = now_ns + refused.retry_after_s * SECOND_NS
            again = copy(tested)
            again.charge(num_paid, later_ns)
            again.charge(num, later_ns, num_paid=num_paid)
        except InvalidRequest:
            assert num > per_minute
        elapsed_ns = now_ns - START_NS
        assert num_granted <= per_minute + elapsed_ns // (60 * SECOND_NS // per_minute) + 1
        left = tested.allowance(now_ns)
        assert left is not None
        assert 0 <= left.remaining <= left.limit


def test_places_are_taken_and_given_back() -> None:
    tested = meter(at_once=3)
    tested.enter(2)
    with pytest.raises(LimitReached, match="2 generations running, of 3") as refused:
        tested.enter(2)
    assert refused.value.retry_after_s == 1
    assert isinstance(refused.value, QueueFull)  # dialects tell clients to wait
    tested.enter(1)
    tested.enter(0)
    tested.leave(2)
    tested.enter(2)


def test_what_can_never_be_had_is_no_matter_of_waiting() -> None:
    with pytest.raises(InvalidRequest, match="4 generations a minute"):
        meter(per_minute=4).charge(5, START_NS)
    with pytest.raises(InvalidRequest, match="4 generations running"):
        meter(at_once=4).enter(5)


def test_without_limits_nothing_is_refused_and_nothing_told() -> None:
    tested = meter()
    tested.charge(10_000_000, START_NS)
    tested.enter(10_000_000)
    assert tested.allowance(START_NS) is None


def test_another_limit_holds_at_once_and_forgives_nothing() -> None:
    tested = meter(per_minute=60)
    tested.charge(60, START_NS)
    tested.client = Client("ci", requests_per_minute=6)
    assert tested.allowance(START_NS) == (6, 0, 60 * SECOND_NS)
    with pytest.raises(LimitReached) as refused:
        tested.charge(1, START_NS)
    assert refused.value.retry_after_s == 10
