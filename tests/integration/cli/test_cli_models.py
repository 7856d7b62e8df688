"""`cairn models pull`, `list` and `rm` on a hub of this machine, `cairn plan --suggest`, and near names."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.huggingface.hub_cache import held_bytes, remove
from domain.errors import ModelNotFound
from domain.ids import ModelId
from domain.setup.suggestions import SUGGESTIONS
from tests.support.mlx.fake_hub import fake_hub
from tests.support.processes.cli_process import run_cairn, run_here

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"w" * 300_000,
    "code.py": b"no",
}


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    huge = {**FILES, "model.safetensors": b"w" * (70 << 20)}
    unknown = {**FILES, "config.json": b'{"model_type": "nonsense"}'}
    with fake_hub({"org/small": FILES, "org/huge": huge, "org/unknown": unknown}) as endpoint:
        yield endpoint


def models(
    home: Path, hub: str, *arguments: str, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the hub's library reads its variables when it is imported."""
    place = {"HF_ENDPOINT": hub, "HF_HOME": str(home / "hf"), "HF_HUB_OFFLINE": "0", "CAIRN_ENGINE__BACKEND": "fake"}
    return run_cairn(home, "models", *arguments, stdin=stdin, **(place | variables))


def test_a_model_is_pulled_listed_and_removed(tmp_path: Path, hub: str) -> None:
    pulled = models(tmp_path, hub, "pull", "org/small")
    assert pulled.returncode == 0, pulled.stderr
    assert "293 KiB to download" in pulled.stderr
    assert "cairn serve org/small" in pulled.stdout
    listed = json.loads(models(tmp_path, hub, "list", "--json", CAIRN_ENGINE__BACKEND="mlx").stdout)
    assert {"org/small": 300_000}.items() <= {one["id"]: one["bytes"] for one in listed}.items()
    kept = models(tmp_path, hub, "rm", "org/small", stdin="n\n")
    assert (kept.returncode, "Remove org/small (293 KiB)" in kept.stderr) == (1, True)
    entry = tmp_path / "hf/hub/models--org--small"
    assert entry.is_dir()
    gone = models(tmp_path, hub, "rm", "org/small", "--yes")
    assert (gone.returncode, entry.exists()) == (0, False)


def test_a_model_larger_than_memory_is_pulled_only_if_the_user_says_so(tmp_path: Path, hub: str) -> None:
    small = {"CAIRN_ENGINE__MEMORY": "64MiB"}
    refused = models(tmp_path, hub, "pull", "org/huge", stdin="n\n", **small)
    assert (refused.returncode, "Download it all the same?" in refused.stderr) == (1, True)
    assert not list((tmp_path / "hf").rglob("*.safetensors"))
    assert models(tmp_path, hub, "pull", "org/huge", "--yes", **small).returncode == 0


def test_a_disk_without_room_is_named_before_the_download(tmp_path: Path, hub: str) -> None:
    code = (
        "import shutil; free = shutil.disk_usage; shutil.disk_usage = lambda path: free(path)._replace(free=1 << 20);"
        "import sys; sys.argv = ['cairn', 'models', 'pull', 'org/huge'];"
        "from interfaces.cli.main import main; main()"
    )
    place = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **place}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "org/huge: 70 MiB are missing, but 1 MiB are free" in done.stderr
    assert "HF_HUB_CACHE" in done.stderr


def test_a_model_of_an_unknown_type_is_not_downloaded(tmp_path: Path, hub: str) -> None:
    refused = models(tmp_path, hub, "pull", "org/unknown", "--yes", CAIRN_ENGINE__BACKEND="mlx")
    assert (refused.returncode, "no model type 'nonsense'" in refused.stderr) == (1, True), refused.stderr
    assert not list((tmp_path / "hf").rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["pull", "org/smal"], 1, "the hub has no model org/smal, or it is private"),
        (["pull", "mlx-community/Qwen3-06B-4bit"], 1, "near names: mlx-community/Qwen3-0.6B-4bit"),
    ],
)
def test_names_that_the_hub_does_not_have(
    tmp_path: Path, hub: str, arguments: list[str], status: int, message: str
) -> None:
    done = models(tmp_path, hub, *arguments, "--yes")
    assert done.returncode == status
    assert message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["pull", "../../etc"], 2, "ORG/NAME must be a hub id, not '../../etc'"),
        (["rm", "fake-atention"], 2, "near names: fake-attention"),
        (["rm", "org/never"], 1, "has no model org/never"),
    ],
)
def test_names_that_lead_nowhere(tmp_path: Path, arguments: list[str], status: int, message: str) -> None:
    done = run_here(tmp_path, "models", *arguments, "--yes", CAIRN_ENGINE__BACKEND="fake")
    assert (done.returncode, message in done.stderr) == (status, True)


@pytest.mark.parametrize("name", ["..", "org/..", "a--b/c", "org/link", "org/file"])
def test_nothing_outside_the_cache_is_removed(tmp_path: Path, name: str) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    (cache / "models--a--b--c").mkdir(parents=True)
    (cache / "models--org--link").symlink_to(outside)
    (cache / "models--org--file").write_text("x")
    for act in (held_bytes, remove):
        with pytest.raises(ModelNotFound):
            act(cache, ModelId(name))
    assert (outside / "kept").exists()
    assert (cache / "models--a--b--c").exists()


def test_links_in_a_removed_model_are_not_followed(tmp_path: Path) -> None:
    outside, entry = tmp_path / "outside", tmp_path / "cache/models--org--m"
    outside.mkdir()
    (outside / "kept").write_bytes(b"x" * 1000)
    (entry / "blobs").mkdir(parents=True)
    (entry / "blobs/b").write_bytes(b"x" * 10)
    (entry / "snapshots").symlink_to(outside)
    assert held_bytes(tmp_path / "cache", ModelId("org/m")) < 1000 + entry.stat().st_size
    remove(tmp_path / "cache", ModelId("org/m"))
    assert (outside / "kept").exists()
    assert not entry.exists()


def test_plan_suggests_what_fits(tmp_path: Path) -> None:
    arguments = ("plan", "--suggest", "--memory", "24GiB", "--backend", "fake")
    found = json.loads(run_here(tmp_path, *arguments, "--json").stdout)
    names = [one["model"] for one in found["models"]]
    assert names
    assert set(names) < {one.name for one in SUGGESTIONS}
    text = run_here(tmp_path, *arguments).stdout
    assert text.splitlines()[-1] == f"To download the first: cairn models pull {names[0]}"
    none = run_here(tmp_path, "plan", "--suggest", "--memory", "64MiB", "--backend", "fake")
    assert (none.returncode, "try a smaller --context" in none.stderr) == (1, True)


def test_a_pipe_gets_a_line_a_model_that_awk_can_read(tmp_path: Path) -> None:
    listed = run_here(tmp_path, "models")
    rows = [line.split("\t") for line in listed.stdout.splitlines()]
    assert {row[0] for row in rows} >= {"cairn-demo", "cairn-demo-hybrid"}
    assert all(len(row) == 5 and int(row[1]) > 0 and Path(row[4]).is_dir() for row in rows)


def test_a_model_is_shown_by_its_files(tmp_path: Path) -> None:
    shown = run_here(tmp_path, "show", "cairn-demo-hybrid")
    assert shown.returncode == 0, shown.stderr
    found = {line[:14].strip(): line[15:] for line in shown.stdout.splitlines()}
    assert found["answers"] == "generate"
    assert found["context"] == "8,192 tokens (config.json)"
    assert "of one state for all" in found["layers"]
    assert found["template"] == "tools, reasoning, late system messages"
    assert found["memory"].endswith("with 8,192 tokens")
    assert run_here(tmp_path, "show", "no-such-model").returncode == 1


def test_the_hub_that_was_not_reached_is_named(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    refused = models(tmp_path, nowhere, "pull", "org/small")
    assert refused.returncode == 1
    assert f"the hub cannot be reached at {nowhere}" in refused.stderr
