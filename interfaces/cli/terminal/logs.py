"""Logging for commands: Python's own, to stderr, as plain lines or as one JSON object a line."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from adapters.system.log_level import set_log_level
from domain.printable import printable

MAX_CHARS = 10_000
"""The bound on one line."""


class PlainFormatter(logging.Formatter):
    """The plain format: `2026-11-21 10:00:00.123 INFO cairn.engine: message`, local time.

    A message is one line, and a traceback is indented, so that no text in a message passes for another line.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = printable(record.message, MAX_CHARS)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"  {printable(line, MAX_CHARS)}" for line in lines)


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC, ISO 8601), level, logger, message, exception where there is one, and the record's
    `cairn_fields` as keys of their own."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            **getattr(record, "cairn_fields", {}),
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def configure_logging(level: str, log_format: str) -> None:
    """Configures logging, once a process: Cairn from `level`, libraries from warning unless `level` is debug."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else PlainFormatter())
    logging.basicConfig(handlers=[handler], force=True)
    set_log_level(level)
    logging.captureWarnings(True)
