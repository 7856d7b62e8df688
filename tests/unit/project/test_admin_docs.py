"""docs/http-api.md tells of every field of the admin's API."""

import re
from pathlib import Path

import pytest
from msgspec import Struct

from interfaces.http.admin.figures_body import FiguresBody, HistoryBody, LatencyBody, ReuseBody
from interfaces.http.admin.overview import HealthBody, OverviewBody, QueueCountsBody
from interfaces.http.admin.request_body import EndBody, RequestBody
from interfaces.http.admin.requests import RequestListBody
from interfaces.http.admin.settings import SettingBody

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
        SettingBody,
    ],
)
def test_every_field_is_told_of(body: type[Struct]) -> None:
    told = set(re.findall(r"[a-z0-9_]+", " ".join(re.findall(r"`([^`]+)`", SECTION))))
    assert [name for name in body.__struct_fields__ if name not in told] == []
