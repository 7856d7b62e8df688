"""Corrections of memory estimates, remembered in a file."""

import json
import os
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import pytest

from adapters.mlx.memory import MeasuredFile, correction_of, paces_of
from application.services.lane import Lane
from domain.memory.estimate import PeakCorrection
from tests.support.engines.finish_load import finish_load
from tests.support.patience import PATIENCE_S

KNOWN = PeakCorrection(2.0, 1.0, 1)


@pytest.fixture
def lane() -> Iterator[Lane]:
    lane = Lane("weights", 1)
    yield lane
    lane.close()
    assert lane.join(PATIENCE_S)


def recall(peaks: MeasuredFile, key: str) -> PeakCorrection:
    """In the thread that writes, after it has written."""
    return correction_of(finish_load(peaks.recall(key)))


def test_a_correction_is_remembered_by_model(tmp_path: Path, lane: Lane) -> None:
    peaks = MeasuredFile(tmp_path / "new", lane)
    peaks.remember("a", list(astuple(PeakCorrection(1.25, 0.5, 2))))
    peaks.remember("b", list(astuple(PeakCorrection(0.75, 0.0, 3))))
    assert recall(peaks, "c") == PeakCorrection()
    later = MeasuredFile(tmp_path / "new", lane)
    assert [recall(later, key) for key in "ab"] == [PeakCorrection(1.25, 0.5, 2), PeakCorrection(0.75, 0.0, 3)]


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
def test_an_invalid_entry_counts_as_absent(tmp_path: Path, lane: Lane, text: str) -> None:
    (tmp_path / "measured.json").write_text(text)
    peaks = MeasuredFile(tmp_path, lane)
    assert recall(peaks, "a") == PeakCorrection()
    peaks.remember("a", list(astuple(KNOWN)))
    assert recall(peaks, "a") == KNOWN
    assert json.loads((tmp_path / "measured.json").read_text()) == {"a": [2.0, 1.0, 1]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[0, 0.5], [3, 0.25]]", ((0, 0.5), (3, 0.25))),
        ("null", ()),
        ('{"0": 0.5}', ()),
        ("[[0, 0.5], [1, NaN], [2, -1.0], [3, Infinity], [-1, 0.5], [4.0, 0.5], [5], 6]", ((0, 0.5),)),
        ("[[true, 0.5], [999999, 0.5], [7, 1e308]]", ()),
    ],
)
def test_of_a_remembered_pace_the_valid_pairs_count(text: str, expected: tuple[tuple[int, float], ...]) -> None:
    assert paces_of(json.loads(text)) == expected


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, lane: Lane) -> None:
    (tmp_path / "measured.json").mkdir()
    peaks = MeasuredFile(tmp_path, lane)
    peaks.remember("a", list(astuple(KNOWN)))
    recall(peaks, "a")
    assert [path.name for path in tmp_path.iterdir()] == ["measured.json"]


def test_a_disk_that_hangs_delays_no_caller(tmp_path: Path, lane: Lane) -> None:
    peaks = MeasuredFile(tmp_path, lane)
    hung = tmp_path / "measured.json"
    os.mkfifo(hung)  # reading it waits for a writer
    for count in range(100):
        peaks.remember("a", list(astuple(PeakCorrection(2.0, 1.0, count))))
        peaks.remember("b", list(astuple(PeakCorrection(3.0, 1.0, count))))
    assert lane.num_pending <= 2, "one under way, and one for all later corrections"
    hung.write_text("{}")  # it answers
    assert recall(peaks, "b") == PeakCorrection(3.0, 1.0, 99)
    lane.close()
    peaks.remember("a", list(astuple(PeakCorrection())))
