"""GET /admin/api/logs: what the server logged in the last hour. For admins."""

import logging
from typing import Annotated, Literal

from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from msgspec import Struct

from application.services.recent_log import RecentLog
from interfaces.http.native.requests import admin_get

MAX_SHOWN = 500


class LogLineBody(Struct):
    """A line. `number`: counts from the start of the server. `text`: with a traceback, a line each."""

    number: int
    unix_s: float
    level: str
    logger: str
    text: str


class LogsBody(Struct, tag_field="object", tag="cairn.logs"):
    """`data`: the newest 500 lines that were asked for, the oldest first. `last`: for `since`, to get later ones."""

    last: int
    data: list[LogLineBody]


def log_routes(log: RecentLog) -> list[HTTPRouteHandler]:
    @admin_get("/logs", "readLogs", 400)
    async def read_logs(
        level: Annotated[
            Literal["debug", "info", "warning", "error"], Parameter(description="The least level of a line.")
        ] = "debug",
        since: Annotated[int, Parameter(ge=0, description="`last` of an earlier answer: only later lines.")] = 0,
    ) -> LogsBody:
        lines, last = log.read(since, logging.getLevelNamesMapping()[level.upper()], MAX_SHOWN)
        shown = [
            LogLineBody(
                line.number, line.unix_ns / 1e9, logging.getLevelName(line.level).lower(), line.logger, line.text
            )
            for line in lines
        ]
        return LogsBody(last, shown)

    return [read_logs]
