"""What measured peaks do to estimated ones."""

import json
import os
from pathlib import Path

import pytest

from adapters.mlx.peak_memory import PeakMemory, recall, remember
from application.services.lane import Lane
from application.services.token_side.model_loads import whole
from domain.memory.correction import LEAST, MIN_BYTES, MOST, PeakCorrection
from domain.memory.shape import MemoryShape, StateCost, StepCost
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


def test_it_is_remembered_by_model(tmp_path: Path):
    remember(tmp_path / "new", "a", PeakCorrection(1.25, 10, 2))
    remember(tmp_path / "new", "b", PeakCorrection(0.75, 20, 3))
    assert recall(tmp_path / "new", "a") == PeakCorrection(1.25, 10, 2)
    assert recall(tmp_path / "new", "b") == PeakCorrection(0.75, 20, 3)
    assert recall(tmp_path / "new", "c") == recall(None, "a") == PeakCorrection()


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, '{"a": 1}', '{"a": [99.0, 1, 1]}', '{"a": ["1.0", 1, 1]}', '{"a": [1.0, -1, 1]}']
)
def test_what_is_not_to_be_believed_counts_as_nothing(tmp_path: Path, text: str):
    (tmp_path / "memory-peaks.json").write_text(text)
    assert recall(tmp_path, "a") == PeakCorrection()
    remember(tmp_path, "a", PeakCorrection(2.0, 1, 1))
    assert json.loads((tmp_path / "memory-peaks.json").read_text()) == {"a": [2.0, 1, 1]}


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
