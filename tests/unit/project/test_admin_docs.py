"""docs/http-api.md names every field of the admin's API."""

import re
from pathlib import Path

import pytest
from msgspec import Struct

from interfaces.http.native.admin import (
    FiguresBody,
    HealthBody,
    HistoryBody,
    LatencyBody,
    OverviewBody,
    QueueCountsBody,
    ReuseBody,
)
from interfaces.http.native.requests import EndBody, RequestBody, RequestListBody

PAGE = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text()
SECTION = PAGE.partition("## The server at work")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    "body",
    [
        OverviewBody,
        HealthBody,
        QueueCountsBody,
        FiguresBody,
        LatencyBody,
        ReuseBody,
        HistoryBody,
        RequestListBody,
        RequestBody,
        EndBody,
    ],
)
def test_every_field_is_reported(body: type[Struct]) -> None:
    reported = set(re.findall(r"[a-z0-9_]+", " ".join(re.findall(r"`([^`]+)`", SECTION))))
    assert [name for name in body.__struct_fields__ if name not in reported] == []
