"""`cairn quantize`, with its process: plan, copy, stop, and refusals."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from typer.testing import CliRunner

from application.ports.quantiser import QuantOrder, QuantPhase, QuantProgress
from domain.errors import InvalidRequest, ModelLoadFailed
from domain.models.capability import PLAIN_USE
from domain.models.quantisation import Quantisation
from interfaces.cli.main import app
from interfaces.composition.backends import quantiser
from tests.support.mlx.quantised_copies import copied, same_bytes, tensors
from tests.support.mlx.tiny_models import write_folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder("llama", tmp_path_factory.mktemp("models") / "tiny", mx.bfloat16)


def test_a_plan_is_shown_and_a_copy_is_made(source: Path, tmp_path: Path) -> None:
    arguments = ["quantize", str(source), "--bits", "8", "--group", "32", "--model-dir", str(tmp_path)]
    shown = CliRunner().invoke(app, [*arguments, "--dry-run", "--json"])
    assert shown.exit_code == 0, shown.output
    plan = json.loads(shown.stdout)
    assert plan["out"] == str(tmp_path / "tiny-8bit-g32")
    assert set(plan["paths"].values()) == {"8 bits, groups of 32"}
    assert not list(tmp_path.iterdir())
    made = CliRunner().invoke(app, [*arguments, "--no-check"])
    assert made.exit_code == 0, made.output
    assert f"cairn serve {tmp_path / 'tiny-8bit-g32'}" in made.output
    copied(source, tmp_path / "here", Quantisation("affine", 8, 32))
    ours, theirs = tensors(tmp_path / "tiny-8bit-g32"), tensors(tmp_path / "here")
    assert set(ours) == set(theirs)
    assert all(same_bytes(ours[name], theirs[name]) for name in ours)
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 2
    assert "exists: remove it, or give another name" in again.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mode", "mxfp4", "--bits", "8"], "bits must be 4 with mxfp4"),
        (["--recipe", "oq4"], "recipe must be measured"),
        (["--size", "huge"], "huge"),
        (["--recipe", "absent.json"], "absent.json cannot be read"),
        (["--size", "1GB", "--recipe", "mixed_4_6"], "size needs the recipe measured"),
        (["--out", ".hidden"], "name must be at most 96 letters"),
    ],
)
def test_what_cannot_be_made_is_refused_before_any_work(
    arguments: list[str], said: str, source: Path, tmp_path: Path
) -> None:
    found = CliRunner().invoke(app, ["quantize", str(source), "--model-dir", str(tmp_path), *arguments])
    assert found.exit_code == 2
    assert said in found.output
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_not_here_and_no_folder_are_named(source: Path, tmp_path: Path) -> None:
    absent = CliRunner().invoke(app, ["quantize", "some/model", "--model-dir", str(tmp_path)])
    assert absent.exit_code != 0
    assert "some/model is not here" in absent.output
    nowhere = CliRunner().invoke(app, ["quantize", str(source)])
    assert nowhere.exit_code == 2
    assert "give --model-dir DIR" in nowhere.output


class Stop(Exception):
    pass


def test_a_process_is_ended_by_its_report_and_its_refusal_is_the_callers(source: Path, tmp_path: Path) -> None:
    phases: list[QuantPhase] = []

    def stop(now: QuantProgress) -> None:
        phases.append(now.phase)
        raise Stop

    with pytest.raises(Stop):
        quantiser().run(QuantOrder(str(source), str(tmp_path / "copy"), PLAIN_USE, Quantisation()), stop)
    assert phases
    assert not (tmp_path / "copy").exists()
    (tmp_path / "there").mkdir()
    with pytest.raises(InvalidRequest) as refused:
        quantiser().run(QuantOrder(str(source), str(tmp_path / "there"), PLAIN_USE, Quantisation()), lambda _: None)
    assert refused.value.param == "out"
    with pytest.raises(ModelLoadFailed, match=r"config\.json"):
        quantiser().plan(
            QuantOrder(str(tmp_path / "there"), str(tmp_path / "x"), PLAIN_USE, Quantisation()), lambda _: None
        )
