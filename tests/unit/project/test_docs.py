"""Everything that the pages of the documentation name exists: commands, flags, settings, links and headings."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from adapters.config.loader import shown_settings
from application.settings import Settings
from interfaces.cli.main import app

ROOT = Path(__file__).parents[3]
HISTORY = ROOT / "CHANGELOG.md"  # names what was removed
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted({*ROOT.glob("*.md")} - {HISTORY}), ROOT / "training/README.md"]
SETTINGS = {shown.path for shown in shown_settings(Settings(), {}, "")}
COMMAND: Any = typer.main.get_command(app)
NO_COMMAND = {"cairn document store"}
"""A line of a file."""

FAULTS = re.compile(r"(engine|cache)\.[a-z]+|store\.read_timeout")
"""Names of `cairn.faults`, where no setting is called so."""

MODULE = re.compile(
    r"`((?:domain|application|adapters|interfaces|services|use_cases|tests|bench|t[a-z]+_side)/[\w/.]+)`"
)
CONTENT_TYPE = "application/json"
"""It has the form of a module."""

page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@page
def test_commands_and_flags_exist(page: Path):
    text = page.read_text()
    lines = re.findall(r"^    (cairn .*)$", text, re.MULTILINE) + re.findall(r"`(cairn [^`]+)`", text)
    assert [line for line in lines if line not in NO_COMMAND and not is_understood(line)] == []


def is_understood(line: str) -> bool:
    command = COMMAND
    words = shlex.split(line, comments=True)[1:]
    words = words[: words.index("--")] if "--" in words else words
    while words and hasattr(command, "commands"):
        if (command := command.commands.get(words.pop(0))) is None:
            return False
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {word.split("=")[0] for word in words if word.startswith("--")} <= {*options, "--help"}


@page
def test_settings_exist(page: Path):
    text = page.read_text()
    sections = "|".join(sorted({path.partition(".")[0] for path in SETTINGS}))
    named = set(re.findall(rf"`((?:{sections})\.[a-z_]+)(?: = [^`]*)?`", text))
    named |= {f"{section}.{name}".lower() for section, name in re.findall(r"CAIRN_([A-Z]+)__([A-Z_]+)", text)}
    assert [name for name in sorted(named - SETTINGS) if not FAULTS.fullmatch(name)] == []


@page
def test_links_lead_somewhere(page: Path):
    links = re.findall(r"\]\((?!https?:|mailto:)([^)#]*)#?([^)]*)\)", page.read_text())
    targets = [(page.parent / path if path else page, heading) for path, heading in links]
    assert [str(path) for path, _ in targets if not path.exists()] == []
    assert [heading for path, heading in targets if heading and heading not in headings(path)] == []


def headings(page: Path) -> Iterator[str]:
    for title in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


@page
def test_modules_exist(page: Path):
    homes = (ROOT, ROOT / "application", ROOT / "application/services")
    named = sorted({*MODULE.findall(page.read_text())} - {CONTENT_TYPE})
    assert [
        name for name in named if not any((home / file).exists() for home in homes for file in (name, f"{name}.py"))
    ] == []
