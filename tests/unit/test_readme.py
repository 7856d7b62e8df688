"""What the README promises exists: settings load, snippets compile, commands, targets and files are there."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer.main

from adapters.config.loader import load_settings
from domain.byte_size import ByteSize
from interfaces.cli.main import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    """`cairn ...` lines of indented blocks, and inline code."""
    lines = re.findall(r"^    (cairn .*)$", README, re.MULTILINE) + re.findall(r"`(cairn [^`]+)`", README)
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_the_configuration_loads(tmp_path: Path):
    (toml,) = blocks("toml")
    (tmp_path / "config.toml").write_text(toml)
    settings = load_settings({"CAIRN_CONFIG": str(tmp_path / "config.toml")}).settings
    assert settings.server.port == 9000
    assert settings.store.quota == ByteSize(num_bytes=200 * 2**30)


def test_the_variables_are_known():
    named = re.findall(r"`(CAIRN_\w+__\w+)=(\w+)`", README)
    assert named
    load_settings(dict(named) | {"CAIRN_CONFIG": "/dev/null"})


def test_the_code_compiles():
    for code in blocks("python"):
        compile(code, "README.md", "exec")


def test_links_lead_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_targets_exist():
    named = set(re.findall(r"make ([a-z-]+)", README)) - {"them"}
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30).stdout
    assert {"serve", "test", "check"} <= named
    assert [target for target in named if f"  make {target} " not in listed] == []


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_and_flags_exist(words: list[str]):
    group = typer.main.get_command(app)
    known = group.commands  # type: ignore[attr-defined]
    command = known[words[0]]
    while hasattr(command, "commands") and len(words) > 1 and words[1] in command.commands:
        words = words[1:]
        command = command.commands[words[0]]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= options
