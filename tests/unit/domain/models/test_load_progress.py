"""The fraction of a load and its seconds left, which are never invented."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.ids import ModelId
from domain.models.load_progress import LEAST_RATED_NS, LoadPhase, LoadProgress

S = 1_000_000_000
NEW = LoadProgress(ModelId("m"))


def reports(*told: tuple[LoadPhase, int, int, int]) -> LoadProgress:
    """The progress after reports of (phase, done, total, at_s)."""
    progress = NEW
    for phase, done, total, at_s in told:
        progress = progress.reached(phase, done, total, at_s * S)
    return progress


def test_seconds_left_follow_the_rate_of_the_phase_so_far() -> None:
    progress = reports((LoadPhase.HASHING, 0, 80, 100), (LoadPhase.HASHING, 20, 80, 110))
    assert progress.fraction == 0.25
    assert progress.seconds_left(110 * S) == 30
    assert progress.seconds_left(115 * S) == 25, "time goes on between two reports"
    assert progress.seconds_left(200 * S) == 0


@pytest.mark.parametrize(
    "told",
    [
        [],
        [(LoadPhase.MEASURING, 0, 0, 1)],
        [(LoadPhase.READING, 0, 80, 1), (LoadPhase.READING, 0, 80, 9)],
        [(LoadPhase.HASHING, 0, 80, 1), (LoadPhase.HASHING, 80, 80, 9), (LoadPhase.READING, 40, 80, 9)],
        [(LoadPhase.HASHING, 0, 80, 1), (LoadPhase.HASHING, 80, 80, 9), (LoadPhase.HASHING, 10, 20, 9)],
    ],
    ids=["nothing said", "no amount", "nothing done", "another phase", "another total"],
)
def test_without_a_rate_nothing_is_said(told: list[tuple[LoadPhase, int, int, int]]) -> None:
    assert reports(*told).seconds_left(20 * S) is None


def test_without_an_amount_there_is_no_fraction() -> None:
    assert NEW.fraction is None
    assert reports((LoadPhase.READING, 120, 80, 1)).fraction == 1


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 10**13), st.integers(0, 10**13))
def test_seconds_left_are_known_or_absent(done: int, total: int, took_ns: int, later_ns: int) -> None:
    progress = NEW.reached(LoadPhase.READING, 0, total, 5).reached(LoadPhase.READING, done, total, 5 + took_ns)
    left_s = progress.seconds_left(5 + took_ns + later_ns)
    assert (left_s is None) == (not total or not done or took_ns < LEAST_RATED_NS)
    assert left_s is None or 0 <= left_s <= took_ns * max(0, total - done) / max(1, done) / S + 1e-6
