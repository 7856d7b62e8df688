"""What measured peaks do to estimated ones."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.mlx.memory import PeakMemory, recall, remember
from application.services.lane import Lane
from domain.memory.correction import DEEP_CHUNKS, LEAST_NEAR, MIN_BYTES, MOST, PeakCorrection
from domain.memory.shape import MemoryShape, StateCost, StepCost
from tests.support.engines.finish_load import finish_load
from tests.support.patience import PATIENCE_S

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


def test_it_is_remembered_by_model(tmp_path: Path):
    remember(tmp_path / "new", "a", PeakCorrection(1.25, 0.5, 2))
    remember(tmp_path / "new", "b", PeakCorrection(0.75, 0.0, 3))
    assert recall(tmp_path / "new", "a") == PeakCorrection(1.25, 0.5, 2)
    assert recall(tmp_path / "new", "b") == PeakCorrection(0.75, 0.0, 3)
    assert recall(tmp_path / "new", "c") == recall(None, "a") == PeakCorrection()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"a": 1}',
        '{"a": [99.0, 1.0, 1]}',
        '{"a": ["1.0", 1.0, 1]}',
        '{"a": [1.0, -1.0, 1]}',
        '{"a": [1.0, 1.0, -1]}',
        '{"a": [1.0, NaN, 1]}',
        '{"a": [2.0, 5, 1, 1.0]}',
    ],
)
def test_what_is_not_to_be_believed_counts_as_nothing(tmp_path: Path, text: str):
    (tmp_path / "memory-peaks.json").write_text(text)
    assert recall(tmp_path, "a") == PeakCorrection()
    remember(tmp_path, "a", PeakCorrection(2.0, 1.0, 1))
    assert json.loads((tmp_path / "memory-peaks.json").read_text()) == {"a": [2.0, 1.0, 1]}


def test_what_cannot_be_remembered_leaves_nothing_behind(tmp_path: Path):
    (tmp_path / "memory-peaks.json").mkdir()
    remember(tmp_path, "a", PeakCorrection(2.0, 1.0, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["memory-peaks.json"]


def test_a_disk_that_does_not_answer_is_waited_for_by_nobody_who_computes(tmp_path: Path):
    lane = Lane("weights", 1)
    peaks = PeakMemory(tmp_path, lane)
    assert finish_load(peaks.recall("a")) == PeakCorrection()
    hung = tmp_path / "memory-peaks.json"
    os.mkfifo(hung)  # who reads it waits until somebody writes
    for count in range(100):
        peaks.remember("a", PeakCorrection(2.0, 1.0, count))
        peaks.remember("b", PeakCorrection(3.0, 1.0, count))
    assert lane.num_pending <= 2, "one under way, and one for all that came since"
    hung.write_text("{}")  # it answers
    assert finish_load(peaks.recall("b")) == PeakCorrection(3.0, 1.0, 99)
    assert recall(tmp_path, "a") == PeakCorrection(2.0, 1.0, 99)
    lane.close()
    peaks.remember("a", PeakCorrection())
    assert lane.join(PATIENCE_S)
