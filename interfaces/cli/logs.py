"""Logging for commands: Python's own, to stderr, as plain lines or as one JSON object a line."""

import json
import logging
import sys
from datetime import UTC, datetime


class PlainFormatter(logging.Formatter):
    """`2026-11-21 10:00:00.123 INFO cairn.engine: message`, local time."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC, ISO 8601), level, logger, message, and exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def configure_logging(level: str, log_format: str) -> None:
    """Once a process. Ours from `level`; libraries only from warning, unless `level` is debug."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else PlainFormatter())
    logging.basicConfig(level=level.upper() if level == "debug" else "WARNING", handlers=[handler], force=True)
    logging.getLogger("cairn").setLevel(level.upper())
    logging.captureWarnings(True)


__all__ = ("JsonFormatter", "PlainFormatter", "configure_logging")
