"""Lines of the server's log read back: plain or JSON, as they are or behind what a journal puts before them."""

import json
import re
from collections.abc import Iterable
from datetime import datetime

from adapters.system.request_summary import read_summary
from interfaces.cli.request_story import RequestStory, from_log

LOGGER = "cairn.requests"
_PLAIN = re.compile(rf"(\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{3}}) \w+ {re.escape(LOGGER)}: (.*)")


def find_story(lines: Iterable[str], id: str) -> RequestStory | None:
    """The last line that tells how this request ended; None where there is none."""
    found: RequestStory | None = None
    for line in lines:
        if id not in line:
            continue
        try:
            found = _told(line, id) or found
        except (ValueError, OverflowError):  # somebody wrote into the log
            continue
    return found


def _told(line: str, id: str) -> RequestStory | None:
    """What this line tells of the request; None for one that is not about it. Raises ValueError and OverflowError."""
    if (entry := _entry(line.rstrip("\r\n"))) is None:
        return None
    message, written_at = entry
    summary = read_summary(message)
    return from_log(id, summary[1], written_at) if summary is not None and summary[0] == id else None


def _entry(line: str) -> tuple[str, datetime | None] | None:
    """The message of the request log and when it was written; None for another logger's, or none."""
    if (plain := _PLAIN.search(line)) is not None:
        return plain[2], datetime.strptime(plain[1], "%Y-%m-%d %H:%M:%S.%f").astimezone()
    at = line.find("{")
    if at < 0:
        return None
    try:
        fields = json.loads(line[at:])
    except (ValueError, RecursionError):
        return None
    match fields:
        case {"logger": logger, "message": str(message), "time": str(time)} if logger == LOGGER:
            return message, _parsed(time)
        case _:
            return None


def _parsed(time: str) -> datetime | None:
    try:
        return datetime.fromisoformat(time)
    except ValueError:
        return None


__all__ = ("LOGGER", "find_story")
