"""The lines that are kept of the log: order, levels, bounds in number, bytes and age, no control codes."""

import logging
from typing import Any

from adapters.fake.environment import FakeClock
from application.services.recent_log import MAX_BYTES, MAX_CHARS, MAX_LINES, RecentLog


def write(log: RecentLog, text: str, *arguments: Any, level: int = logging.INFO, **fields: Any) -> None:
    log.handle(logging.LogRecord("cairn.test", level, "", 0, text, arguments, fields.get("exc_info")))


def texts(log: RecentLog, after: int = 0, level: int = 0, most: int = 10_000) -> list[str]:
    return [line.text for line in log.read(after, level, most)[0]]


def test_lines_come_in_order_by_level_and_only_new_ones() -> None:
    log = RecentLog(FakeClock())
    write(log, "one %s", 1)
    write(log, "two", level=logging.ERROR)
    lines, last = log.read(0, 0, 10)
    assert [(line.text, line.level, line.logger) for line in lines] == [
        ("one 1", logging.INFO, "cairn.test"),
        ("two", logging.ERROR, "cairn.test"),
    ]
    assert texts(log, level=logging.WARNING) == ["two"]
    write(log, "three")
    assert texts(log, after=last) == ["three"]
    assert texts(log, most=2) == ["two", "three"]
    assert texts(log, after=99) == ["one 1", "two", "three"]


def test_what_is_kept_is_bounded() -> None:
    clock = FakeClock()
    log = RecentLog(clock)
    for number in range(MAX_LINES + 7):
        write(log, "%d", number)
    assert texts(log)[:: MAX_LINES - 1] == ["7", str(MAX_LINES + 6)]
    for _ in range(2 * MAX_BYTES // MAX_CHARS):
        write(log, "x" * 2 * MAX_CHARS)
    assert 0.9 * MAX_BYTES < sum(map(len, texts(log))) <= MAX_BYTES
    clock.advance(1800)
    write(log, "later")
    clock.advance(1801)
    assert texts(log) == ["later"]


def test_a_line_is_text_and_its_traceback_has_lines_of_its_own() -> None:
    log = RecentLog(FakeClock())
    write(log, "a\nb \x1b[2J%s", "\ud800")
    try:
        raise ValueError("no\nline")
    except ValueError as error:
        write(log, "failed", exc_info=(type(error), error, error.__traceback__))
    first, second = texts(log)
    assert "\n" not in first
    assert first.isprintable()
    assert second.splitlines()[0] == "failed"
    assert second.splitlines()[1].startswith("Traceback")


def test_a_line_that_cannot_be_formatted_hurts_nobody(capsys: Any) -> None:
    log = RecentLog(FakeClock())
    write(log, "%d", "no number")
    assert texts(log) == []
    assert "Logging error" in capsys.readouterr().err
