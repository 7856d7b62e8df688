"""What measured peaks do to estimated ones."""

import json
import os
from pathlib import Path

import pytest

from adapters.mlx.peak_memory import PeakMemory, recall, remember
from application.services.lane import Lane
from application.services.token_side.model_loads import whole
from domain.memory.correction import LEAST, MIN_BYTES, MOST, MOST_HELD, PeakCorrection
from domain.memory.shape import AheadBound, MemoryShape, StateCost, StepCost
from tests.support.patience import PATIENCE_S

LARGE = 100 * MIN_BYTES


def test_more_than_was_said_counts_at_once():
    assert PeakCorrection().learnt(LARGE, 3 * LARGE).factor == 3.0


def test_less_than_was_said_counts_slowly():
    correction = PeakCorrection().learnt(LARGE, LARGE * 3 // 4)
    assert correction.factor == pytest.approx(1 - 0.25 / 16)
    for _ in range(200):
        correction = correction.learnt(LARGE, LARGE * 3 // 4)
    assert correction.factor == pytest.approx(0.75, abs=0.01)


def test_a_network_that_loops_is_estimated_right_within_the_chunks_of_a_first_prompt():
    """MiB on an H100, four of Qwen3.5's layers: 3,000 of weights and states, and beyond them what was estimated and
    what was measured, of everything 1.41 times as much. Eight of the first 64 chunks are measured."""
    beside, estimated, measured = 3_000, 7_401, 4_359
    correction = PeakCorrection()
    for _ in range(8):
        correction = correction.learnt(estimated << 20, measured << 20)
    assert 1 <= (beside + correction.factor * estimated) / (beside + measured) < 1.25


def test_small_steps_say_nothing_of_large_ones():
    correction = PeakCorrection().learnt(LARGE, 2 * LARGE)
    for _ in range(20):
        correction = correction.learnt(LARGE // 3, LARGE // 9)
    assert correction.factor == 2.0
    assert PeakCorrection().learnt(MIN_BYTES - 1, LARGE) == PeakCorrection()


def test_a_factor_that_has_large_steps_refused_does_not_stay():
    correction = PeakCorrection().learnt(LARGE, 4 * LARGE)
    for _ in range(300):
        correction = correction.learnt(LARGE // 8, LARGE // 8)
    assert correction.factor == pytest.approx(1.0, abs=0.05)


def test_no_measurement_moves_it_out_of_bounds():
    correction = PeakCorrection().learnt(LARGE, 100 * LARGE)
    assert correction.factor == MOST
    for _ in range(1000):
        correction = correction.learnt(LARGE, 0)
    assert correction.factor == pytest.approx(LEAST, abs=0.01)


def test_only_steps_are_corrected():
    shape = MemoryShape(weight_bytes=10, states=(StateCost(3),), step=StepCost(token_bytes=100), logit_bytes=7)
    corrected = PeakCorrection(factor=1.5).applied(shape)
    assert corrected.step == StepCost(token_bytes=150)
    assert (corrected.weight_bytes, corrected.states, corrected.logit_bytes) == (10, (StateCost(3),), 7)


HELD = MemoryShape(step=StepCost(base_bytes=8 * LARGE), ahead=AheadBound(StepCost(base_bytes=LARGE // 10), LARGE))
"""A step of it is held to LARGE."""


def learnt(correction: PeakCorrection, measured_bytes: int) -> PeakCorrection:
    held = HELD.held_ahead_bytes(1, 1)
    assert held == LARGE
    return correction.learnt(8 * LARGE, measured_bytes, held, HELD.chunk_bytes(1, 1) - held)


def test_a_bound_is_never_scaled():
    correction = learnt(PeakCorrection(), LARGE + LARGE // 5)
    assert (correction.factor, correction.held_factor) == (1.0, 2.0)
    assert correction.applied(HELD).chunk_bytes(1, 1) == LARGE + LARGE // 5
    for _ in range(200):
        correction = learnt(correction, LARGE // 2)
    assert correction.held_factor == pytest.approx(1.0, abs=0.01)
    assert correction.factor == 1.0, "what is held says nothing of what is not"


@pytest.mark.parametrize("measured_bytes", [LARGE, 3 * LARGE, 4 * LARGE])
def test_a_held_step_that_took_more_is_covered_at_once_whatever_was_learnt_before(measured_bytes: int):
    """Held to the bound after all or not, and by either of the two estimates."""
    correction = learnt(PeakCorrection(factor=LEAST), measured_bytes)
    assert correction.applied(HELD).chunk_bytes(1, 1) >= measured_bytes
    assert learnt(PeakCorrection(), 1 << 60).held_factor <= MOST_HELD


def test_it_is_remembered_by_model(tmp_path: Path):
    remember(tmp_path / "new", "a", PeakCorrection(1.25, 10, 2))
    remember(tmp_path / "new", "b", PeakCorrection(0.75, 20, 3))
    remember(tmp_path / "new", "held", PeakCorrection(0.75, 20, 3, 8.0))
    assert recall(tmp_path / "new", "held") == PeakCorrection(0.75, 20, 3, 8.0)
    assert recall(tmp_path / "new", "a") == PeakCorrection(1.25, 10, 2)
    assert recall(tmp_path / "new", "b") == PeakCorrection(0.75, 20, 3)
    assert recall(tmp_path / "new", "c") == recall(None, "a") == PeakCorrection()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"a": 1}',
        '{"a": [99.0, 1, 1]}',
        '{"a": ["1.0", 1, 1]}',
        '{"a": [1.0, -1, 1]}',
        '{"a": [1.0, 1, 1, 0.5]}',
        '{"a": [1.0, 1, 1, 65.0]}',
        '{"a": [1.0, 1, 1, NaN]}',
        '{"a": [1.0, 1, 1, 1.0, 1.0]}',
    ],
)
def test_what_is_not_to_be_believed_counts_as_nothing(tmp_path: Path, text: str):
    (tmp_path / "memory-peaks.json").write_text(text)
    assert recall(tmp_path, "a") == PeakCorrection()
    remember(tmp_path, "a", PeakCorrection(2.0, 1, 1))
    assert json.loads((tmp_path / "memory-peaks.json").read_text()) == {"a": [2.0, 1, 1, 1.0]}


def test_what_was_remembered_before_there_were_bounds_counts(tmp_path: Path):
    (tmp_path / "memory-peaks.json").write_text('{"a": [2.0, 1, 1]}')
    assert recall(tmp_path, "a") == PeakCorrection(2.0, 1, 1)


def test_what_cannot_be_remembered_leaves_nothing_behind(tmp_path: Path):
    (tmp_path / "memory-peaks.json").mkdir()
    remember(tmp_path, "a", PeakCorrection(2.0, 1, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["memory-peaks.json"]


def test_a_disk_that_does_not_answer_is_waited_for_by_nobody_who_computes(tmp_path: Path):
    lane = Lane("weights", 1)
    peaks = PeakMemory(tmp_path, lane)
    assert whole(peaks.recall("a")) == PeakCorrection()
    hung = tmp_path / "memory-peaks.json"
    os.mkfifo(hung)  # who reads it waits until somebody writes
    for count in range(100):
        peaks.remember("a", PeakCorrection(2.0, 1, count))
        peaks.remember("b", PeakCorrection(3.0, 1, count))
    assert lane.num_pending <= 2, "one under way, and one for all that came since"
    hung.write_text("{}")  # it answers
    assert whole(peaks.recall("b")) == PeakCorrection(3.0, 1, 99)
    assert recall(tmp_path, "a") == PeakCorrection(2.0, 1, 99)
    lane.close()
    peaks.remember("a", PeakCorrection())
    assert lane.join(PATIENCE_S)
