"""docs/http-api.md names every field of the admin's API, and the pages name commands that exist."""

import re
from pathlib import Path

import pytest
from msgspec import Struct
from typer.main import get_group

from domain.memory.pressure import Level
from interfaces.cli.main import app
from interfaces.http.native.admin import (
    FiguresBody,
    HealthBody,
    HistoryBody,
    LatencyBody,
    OverviewBody,
    QueueCountsBody,
    ReuseBody,
    SavedBody,
)
from interfaces.http.native.bodies import HeldBody, PromisedBody
from interfaces.http.native.requests import EndBody, RequestBody, RequestListBody

PAGE = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text()
SECTION = PAGE.partition("## The server at work")[2].partition("\n## ")[0]

PAGES = Path(__file__).parents[3] / "interfaces/http/pages/files"


def test_pages_name_commands_that_exist() -> None:
    named = {name for page in PAGES.glob("*.html") for name in re.findall(r"<code>cairn (\w+)", page.read_text())}
    assert "status" in named
    assert named <= set(get_group(app).commands)


def test_the_page_shows_every_purpose_and_level_of_memory() -> None:
    script = (PAGES / "admin/memory.js").read_text()
    shown = set(re.findall(r"memory\.((?:held|promised)\.\w+)", script)) | {"held.reading"}  # in the text below
    assert shown == {f"held.{name}" for name in HeldBody.__struct_fields__} | {
        f"promised.{name}" for name in PromisedBody.__struct_fields__
    }
    levels = script.partition("const PRESSURE = {")[2].partition("};")[0]
    assert re.findall(r"^  (\w+):", levels, re.MULTILINE) == [level.name.lower() for level in Level]


@pytest.mark.parametrize(
    "body",
    [
        OverviewBody,
        HealthBody,
        QueueCountsBody,
        FiguresBody,
        LatencyBody,
        ReuseBody,
        SavedBody,
        HistoryBody,
        RequestListBody,
        RequestBody,
        EndBody,
    ],
)
def test_every_field_is_reported(body: type[Struct]) -> None:
    reported = set(re.findall(r"[a-z0-9_]+", " ".join(re.findall(r"`([^`]+)`", SECTION))))
    assert [name for name in body.__struct_fields__ if name not in reported] == []
