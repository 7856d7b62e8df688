"""The commands that answer at once: help, config, models, doctor; and their usage errors."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from application.installation import DISTRIBUTION, installed_version
from interfaces.cli.commands.doctor import LIBRARIES
from tests.support.processes.cli_process import PATIENCE_S, ROOT, environment, run_cairn, run_here

HEAVY = {
    "asyncio", "dependency_injector", "httpx", "huggingface_hub", "litestar", "lmdb", "mlx", "mlx_lm", "msgspec",
    "numpy", "opentelemetry", "pydantic", "tokenizers", "transformers", "uvicorn", "uvloop", "zstandard",
}  # fmt: skip


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["--version"]], ids=" ".join)
def test_help_imports_nothing_heavy(tmp_path: Path, arguments: list[str]):
    """The time of `cairn --help` is the time of its imports. (typer takes pydantic for the options of one command.)"""
    heavy = HEAVY - {"pydantic"} if "serve" in arguments else HEAVY
    code = f"""
import sys
sys.argv = ["cairn", *{arguments!r}]
from interfaces.cli.main import main
try:
    main()
except SystemExit as ended:
    assert not ended.code
print("LOADED", sorted({heavy!r} & set(sys.modules)))
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "LOADED []"
    assert len(result.stdout.splitlines()) > 1, "it said nothing"


def test_config_show_prints_values_and_origins(tmp_path: Path):
    file = tmp_path / ".config/cairn/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[server]\napi_key = "hunter2"\nport = 9\n')
    result = run_here(tmp_path, "config", "show", "--origin", CAIRN_ENGINE__QUEUE="7")
    lines = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert lines["server.port"] == ["9", str(file)]
    assert lines["engine.queue"] == ["7", "CAIRN_ENGINE__QUEUE"]
    assert lines["server.host"] == ['"127.0.0.1"', "default"]
    assert lines["server.api_key"] == ["set", str(file)]
    for path in ("cache.salt", "store.dir", "store.quota", "model.draft"):
        assert lines[path] == ["unset", "default"]
    assert "hunter2" not in result.stdout


@pytest.mark.parametrize(("variables", "is_said"), [({"CAIRN_STORE__KIND": "off"}, True), ({}, False)])
def test_a_folder_of_store_decides_and_says_so(tmp_path: Path, variables: dict[str, str], is_said: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that it ends at once
        port = str(taken.getsockname()[1])
        result = run_cairn(tmp_path, "serve", "--backend", "fake", "--port", port, "--store", "s", **variables)
    assert ("decides store.kind, not CAIRN_STORE__KIND" in result.stdout) is is_said
    assert "cannot listen" in result.stderr


def test_config_show_as_json(tmp_path: Path):
    result = run_here(tmp_path, "config", "show", "--json", CAIRN_STORE__QUOTA="50%", CAIRN_MODEL__DIRS="/a:/b")
    shown = json.loads(result.stdout)
    assert shown["store.quota"] == {"value": "50%", "origin": "CAIRN_STORE__QUOTA"}
    assert shown["model.dirs"] == {"value": ["/a", "/b"], "origin": "CAIRN_MODEL__DIRS"}
    assert shown["model.context_length"] == {"value": None, "origin": "default"}


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["serve", "--port", "70000"], {}, "cairn: server.port must be in 0..65535 (--port)"),
        (["models"], {"CAIRN_CONFIG": "/nowhere"}, "cairn: CAIRN_CONFIG names /nowhere, which does not exist"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used(tmp_path: Path, arguments: list[str], variables: dict[str, str], message: str):
    result = run_here(tmp_path, *arguments, **variables)
    assert result.returncode == 2
    assert result.stderr.startswith(message)
    assert result.stdout == ""


def test_models_as_json(tmp_path: Path):
    listing = json.loads(run_here(tmp_path, "models", "--backend", "fake", "--json").stdout)
    assert [(model["id"], model["default"]) for model in listing] == [
        ("fake-attention", True),
        ("fake-hybrid", False),
        ("fake-windowed", False),
    ]


def test_models_shows_the_embedded_ones_and_those_of_a_folder(tmp_path: Path):
    folder = tmp_path / "models/org/tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes(b"{}")
    result = run_here(tmp_path, "models", "--model-dir", str(tmp_path / "models"))
    names = [line.split()[0] for line in result.stdout.splitlines()]
    assert {"cairn-demo", "cairn-demo-hybrid"} <= set(names)
    assert "org/tiny" in names


def test_doctor_finds_nothing_wrong(tmp_path: Path):
    result = run_here(tmp_path, "doctor", "--backend", "fake", "--json")
    report = json.loads(result.stdout)
    found = {check["name"]: check["found"] for check in report["checks"]}
    # Whether cairn itself is installed, and how much room there is, is up to the machine that tests it.
    problems = {check["name"] for check in report["checks"] if check["problem"]}
    assert problems <= {"versions", "memory", "open files", "data"}
    assert result.returncode == (1 if problems else 0)
    assert report["ok"] is not bool(problems)
    assert found["device"].startswith("toy engine")
    assert found["data"].startswith(str(tmp_path))
    assert set(LIBRARIES) - {DISTRIBUTION} <= set(found["versions"].replace(",", "").split())


@pytest.mark.skipif(installed_version() == "0", reason="Cairn is not installed here")
def test_doctor_finds_the_installed_distribution(tmp_path: Path):
    report = json.loads(run_here(tmp_path, "doctor", "--backend", "fake", "--json").stdout)
    found = {check["name"]: check["found"] for check in report["checks"]}
    assert f"{DISTRIBUTION} {installed_version()}" in found["versions"]


def test_doctor_says_what_is_wrong(tmp_path: Path):
    (tmp_path / "file").write_text("")
    result = run_here(tmp_path, "doctor", "no-such-model", "--backend", "fake", CAIRN_STORE__DIR=str(tmp_path / "file"))
    lines = result.stdout.splitlines()
    assert result.returncode == 1
    assert "! model       no-such-model is not on this machine" in lines
    assert any(line.startswith("! data") and "exists" in line.lower() for line in lines)
    assert lines[-1] == "lines with ! want attention"


def test_doctor_warns_of_settings_that_let_everybody_in(tmp_path: Path):
    names = ("server.allowed_hosts", "server.cors_origins", "cache.show_text")

    def access(**variables: str) -> dict[str, Any]:
        result = run_here(tmp_path, "doctor", "--backend", "fake", "--json", **variables)
        (check,) = [check for check in json.loads(result.stdout)["checks"] if check["name"] == "access"]
        return check

    listed = access(CAIRN_SERVER__ALLOWED_HOSTS="cairn.lan,cairn", CAIRN_SERVER__CORS_ORIGINS="http://localhost:3000")
    assert listed == {"name": "access", "found": "127.0.0.1, without a key", "problem": None}
    opened = access(CAIRN_SERVER__ALLOWED_HOSTS="*", CAIRN_SERVER__CORS_ORIGINS="*", CAIRN_CACHE__SHOW_TEXT="on")
    assert all(name in opened["problem"] for name in names)


def test_doctor_looks_at_mlx(tmp_path: Path):
    pytest.importorskip("mlx.core")
    result = run_cairn(tmp_path, "doctor", "--json", CAIRN_BLAS="off")
    found = {check["name"]: check["found"] for check in json.loads(result.stdout)["checks"]}
    assert found["model"].startswith("cairn-demo in ")
    assert found["device"].endswith(" CPUs")
    if sys.platform == "linux" and found["device"].startswith("cpu"):
        assert found["BLAS"] == "none: switched off by CAIRN_BLAS=off"
