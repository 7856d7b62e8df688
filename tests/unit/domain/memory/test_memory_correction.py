"""What measured peaks do to estimated ones."""

from dataclasses import replace

import pytest

from domain.memory.estimate import DEEP_CHUNKS, LEAST_NEAR, MIN_BYTES, MOST, PeakCorrection
from domain.memory.shape import MemoryShape, StateCost, StepCost

CHUNK = 256
SHAPE = MemoryShape(
    weight_bytes=10,
    states=(StateCost(3),),
    step=StepCost(base_bytes=40 * MIN_BYTES, token_bytes=MIN_BYTES, seen_bytes=100, pair_bytes=64),
    logit_bytes=7,
)
DEEP_END = (DEEP_CHUNKS + 1) * CHUNK


def truth(near: float, deep: float, end: int) -> int:
    """The peak of a model that takes so many times what is estimated."""
    return round(near * SHAPE.step.near_bytes(CHUNK) + deep * SHAPE.step.deep_bytes(CHUNK, end))


@pytest.mark.parametrize(("near", "deep"), [(0.3, 0.35), (0.05, 0.0), (2.0, 3.0)])
def test_a_load_finds_both_parts(near: float, deep: float):
    peaks = {end: truth(near, deep, end) for end in (CHUNK, DEEP_END)}
    found = PeakCorrection.of_load(SHAPE, CHUNK, peaks)
    assert (found.near, found.deep, found.num_measured) == (pytest.approx(near, 0.01), pytest.approx(deep, 0.01), 2)
    for end in (CHUNK, DEEP_END, 400 * CHUNK):
        assert found.applied(SHAPE).chunk_bytes(CHUNK, end) == pytest.approx(truth(near, deep, end), rel=0.01)


def test_one_chunk_at_load_leaves_what_grows_as_it_was_estimated():
    found = PeakCorrection.of_load(SHAPE, CHUNK, {CHUNK: truth(0.5, 0.5, CHUNK)})
    assert (found.near, found.deep, found.num_measured) == (pytest.approx(0.5, 0.01), 1.0, 1)
    assert PeakCorrection.of_load(SHAPE, CHUNK, {CHUNK: MIN_BYTES}).deep == MIN_BYTES / SHAPE.step.deep_bytes(
        CHUNK, CHUNK
    )


def test_a_chunk_too_small_to_tell_says_nothing():
    assert PeakCorrection.of_load(SHAPE, CHUNK, {CHUNK: MIN_BYTES - 1, DEEP_END: 9}) == PeakCorrection()
    small = replace(SHAPE, step=StepCost(token_bytes=1, seen_bytes=1))
    assert PeakCorrection().learnt(small, CHUNK, CHUNK, MIN_BYTES - 1) == PeakCorrection()


@pytest.mark.parametrize("end", [CHUNK, 400 * CHUNK])
def test_more_than_was_said_counts_at_once_and_less_slowly(end: int):
    said = PeakCorrection(0.5, 0.5, 2)
    more = said.learnt(SHAPE, CHUNK, end, truth(0.7, 0.7, end))
    assert more.applied(SHAPE).chunk_bytes(CHUNK, end) == pytest.approx(truth(0.7, 0.7, end), rel=0.01)
    less = said
    for count in range(200):
        less = less.learnt(SHAPE, CHUNK, end, truth(0.4, 0.4, end))
        assert count or less.applied(SHAPE).chunk_bytes(CHUNK, end) > truth(0.48, 0.48, end)
    assert less.applied(SHAPE).chunk_bytes(CHUNK, end) == pytest.approx(truth(0.4, 0.4, end), rel=0.02)


def test_no_measurement_moves_it_out_of_bounds():
    for end in (CHUNK, DEEP_END):
        correction = PeakCorrection().learnt(SHAPE, CHUNK, end, 1 << 60)
        assert max(correction.near, correction.deep) == MOST
        for _ in range(1000):
            correction = correction.learnt(SHAPE, CHUNK, end, 0)
        assert correction.near >= LEAST_NEAR
        assert correction.deep >= 0


def test_only_steps_are_corrected():
    corrected = PeakCorrection(near=1.5, deep=0.25).applied(SHAPE)
    step = StepCost(base_bytes=60 * MIN_BYTES, token_bytes=3 * MIN_BYTES // 2, seen_bytes=25, pair_bytes=16)
    assert corrected == replace(SHAPE, step=step)
