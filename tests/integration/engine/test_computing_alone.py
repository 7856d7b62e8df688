"""What a server's turns are held to is measured by a process that only computes, by turns with them, or reported
as missing."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.computing_alone import ComputingAlone
from bench.process_tree import children
from bench.results import ROOT, Results
from tests.support.patience import PATIENCE_S

MADE = "import sys; from pathlib import Path; from bench.long_context_models import write_long_context_model as write; "
TURNS = ((60.0, 600, 540), (20.0, 680, 620), (40.0, 760, 700), (90.0, 840, 780))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By a process of its own, so that nothing here computes."""
    folder = tmp_path_factory.mktemp("alone") / "model"
    code = f"{MADE}write('attention', Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, cwd=ROOT, timeout=PATIENCE_S)
    return folder


def lines_of(file: Path, what: str) -> list[dict[str, float]]:
    return [line for line in map(json.loads, file.read_text().splitlines()) if line["what"] == what]


def test_each_turn_but_the_first_is_reported_beside_computing_it_alone(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    before = set(children(os.getpid()))
    with ComputingAlone(model, Results(file, "test"), math.inf) as alone:
        for turn in TURNS:
            alone.after(turn)
        begun = set(children(os.getpid())) - before
    ratio = alone.tell()
    assert bool(begun) == Path("/proc").exists(), "processes are counted there"
    assert not begun & set(children(os.getpid())), "its process ends with it"
    pairs, (reported,) = lines_of(file, "pair"), lines_of(file, "alone")
    assert [pair["turn_ms"] for pair in pairs] == [20.0, 40.0, 90.0]
    assert all(pair["computing_ms"] > 0 for pair in pairs)
    assert (reported["tokens"], reported["new_tokens"], reported["pairs"], reported["turns_ms"]) == (540, 60, 3, 40.0)
    assert reported["computing_ms"] == sorted(pair["computing_ms"] for pair in pairs)[1]
    assert ratio == reported["turns_over_computing"] == 40.0 / reported["computing_ms"]


def test_without_time_there_is_none(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    with ComputingAlone(model, Results(file, "test"), 0.0) as alone:
        for turn in TURNS:
            alone.after(turn)
    assert alone.tell() is None
    assert [line["what"] for line in map(json.loads, file.read_text().splitlines())] == ["run", "failed"]


def test_what_fails_is_reported_once_and_ends_nothing(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    with ComputingAlone(tmp_path / "nothing", Results(file, "test"), math.inf) as alone:
        for turn in TURNS:
            alone.after(turn)
    assert alone.tell() is None
    assert len(lines_of(file, "failed")) == 1
