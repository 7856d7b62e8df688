"""`cairn plan` on a folder that holds a configuration and nothing else, and on one with weights."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from interfaces.cli.main import app
from tests.support.mlx import tiny_models
from tests.support.mlx.tiny_encoders import encoder_folder


def planned(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(app, ["plan", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("model_type", ["bert", "xlm-roberta", "modernbert"])
def test_an_encoder_computes_its_longest_text_in_one_pass(tmp_path: Path, model_type: str):
    whole = encoder_folder(tmp_path / "whole", model_type, max_position_embeddings=2002)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text((whole / "config.json").read_text())
    by_files, by_config = (planned(str(folder), "--context", "2000") for folder in (whole, bare))
    assert by_files["prefill_chunk"] == 2000
    peak = by_files["prefill_peak_bytes"]
    assert isinstance(peak, int)
    assert peak == by_config["prefill_peak_bytes"]
    assert peak > 4 * 4 * 2000**2  # the scores of four heads
    assert by_files["states"] == []


def test_a_configuration_is_enough(tmp_path: Path):
    whole = tiny_models.write_folder("gemma3_text", tmp_path / "whole")
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text((whole / "config.json").read_text())
    arguments = ("--memory", "256MiB", "--context", "2k", "--batch", "2", "--dtype", "float32")
    by_files, by_config = planned(str(whole), *arguments), planned(str(bare), *arguments)
    assert (by_files.pop("weights_from"), by_config.pop("weights_from")) == ("files", "config")
    assert by_files.pop("model") != by_config.pop("model")
    assert by_files == by_config
    assert (by_config["fits"], by_config["context"], by_config["batch"]) == (True, 2048, 2)


@pytest.mark.parametrize("family", ["llama", "falcon_h1", "gpt2"])
def test_what_fits_with_fewer_bits_is_what_such_a_model_needs(tmp_path: Path, family: str):
    """Heads of 16 are filled up to groups of 32, and float32 has larger scales: the plan counts both."""
    folder = tiny_models.write_folder(family, tmp_path / "model")
    arguments = (str(folder), "--memory", "64MiB", "--dtype", "float32")
    off = planned(*arguments)["kv_bits"]
    assert isinstance(off, dict)
    assert list(off) == ["8", "8/4", "4"]
    needed = [int(planned(*arguments, "--kv-bits", bits)["needed_bytes"]) for bits in off]  # type: ignore[call-overload]
    assert needed == sorted(needed, reverse=True)
    for (_, found), exact in zip(off.items(), needed, strict=True):
        assert found["needed_bytes"] <= exact <= 1.25 * found["needed_bytes"]
    assert planned(*arguments, "--kv-bits", "8")["kv_bits"] == {}


def test_an_error_is_one_line(tmp_path: Path):
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    for arguments, status in (
        (["--context", "much"], 2),
        (["--memory", "big"], 2),
        ([str(tmp_path / "none")], 1),
        ([str(folder)], 1),
    ):
        result = CliRunner().invoke(app, ["plan", *arguments])
        assert result.exit_code == status, result.output
        assert result.output.startswith("cairn: ")
        assert result.output.count("\n") == 1
