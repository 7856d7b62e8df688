"""What a server's turns are held to is measured by a process that only computes, or told to be missing."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench.computing_alone import tell_computing_alone
from bench.results import ROOT, Results
from tests.support.patience import PATIENCE_S

MADE = "import sys; from pathlib import Path; from bench.long_context_models import write_long_context_model as write; "
STEPS = {"cold": (900.0, 500, 0), "turn 2": (60.0, 600, 500), "turn 3": (20.0, 640, 600), "turn 4": (40.0, 700, 640)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By a process of its own, so that nothing here computes."""
    folder = tmp_path_factory.mktemp("alone") / "model"
    code = f"{MADE}write('attention', Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, cwd=ROOT, timeout=PATIENCE_S)
    return folder


def test_the_median_turn_is_told_as_a_ratio_to_computing_it_alone(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    ratio = tell_computing_alone(model, STEPS, tmp_path, Results(file, "test"), math.inf)
    (told,) = [line for line in map(json.loads, file.read_text().splitlines()) if line["what"] == "alone"]
    assert (told["tokens"], told["new_tokens"], told["turns_ms"]) == (600, 60, 40.0)
    assert told["computing_ms"] > 0
    assert ratio == told["turns_over_computing"] == 40.0 / told["computing_ms"]


def test_without_a_turn_or_without_time_there_is_none(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    assert tell_computing_alone(model, {"cold": STEPS["cold"]}, tmp_path, Results(file, "test"), math.inf) is None
    assert tell_computing_alone(model, STEPS, tmp_path, Results(file, "test"), 0.0) is None
    assert [json.loads(line)["what"] for line in file.read_text().splitlines()] == ["run", "run"]


def test_what_fails_is_told_and_ends_nothing(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    assert tell_computing_alone(tmp_path / "nothing", STEPS, tmp_path, Results(file, "test"), math.inf) is None
    assert json.loads(file.read_text().splitlines()[-1])["what"] == "failed"
