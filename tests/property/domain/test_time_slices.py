"""Slices of time against a list of everything that happened."""

from hypothesis import given
from hypothesis import strategies as st

from domain.health.live_figures import TimeSlices

SLICE_NS, NUM = 10, 4


@given(st.lists(st.integers(0, 120), max_size=40), st.integers(0, 130))
def test_the_last_slices_hold_what_happened_in_them(times: list[int], later: int) -> None:
    """In any order, as long as it is not too old when it arrives."""
    slices, kept = TimeSlices(SLICE_NS, NUM, list[int]), list[int]()
    newest = -1
    for at in times:
        slices.at(at).append(at)
        newest = max(newest, at // SLICE_NS)
        if at // SLICE_NS > newest - NUM:
            kept.append(at)
        assert len(slices) <= NUM
    now = max([*times, later])
    last = slices.last(NUM, now)
    first = now // SLICE_NS + 1 - NUM
    for number, found in zip(range(first, first + NUM), last, strict=True):
        assert (found or []) == [at for at in kept if at // SLICE_NS == number]


def test_more_than_is_kept_cannot_be_had() -> None:
    slices = TimeSlices(SLICE_NS, NUM, list[int])
    slices.at(35).append(1)
    assert slices.last(99, 35) == [None, None, None, [1]]
    assert slices.last(1, 45) == [None]
