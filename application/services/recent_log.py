"""The lines that this process logged in the last hour, for the admin page.

Memory is bounded: MAX_LINES lines of MAX_BYTES together, and each of MAX_CHARS. A line is kept as its formatted text,
without control codes; what the loggers' levels leave out is not kept either.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Lock

from application.ports.clock import Clock
from domain.printable import printable

MAX_LINES = 5_000
MAX_BYTES = 2 << 20
MAX_CHARS = 4_000
KEPT_NS = 3600 * 10**9

_EXCEPTIONS = logging.Formatter()


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line. `number`: counts from 1. `level`: of Python's logging. An exception's traceback follows the text, a line
    each."""

    number: int
    unix_ns: int
    level: int
    logger: str
    text: str

    @property
    def size_bytes(self) -> int:
        return len(self.text.encode(errors="replace")) + len(self.logger)


class RecentLog(logging.Handler):
    """A handler that keeps lines. Any thread."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._lines: deque[LogLine] = deque()
        self._num_bytes = 0
        self._last = 0
        self._guard = Lock()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            texts = [record.getMessage()]
            if record.exc_info:
                texts += _EXCEPTIONS.formatException(record.exc_info).splitlines()
            text = "\n".join(printable(one, MAX_CHARS) for one in texts)[:MAX_CHARS]
        except Exception:
            self.handleError(record)
            return
        with self._guard:
            self._last += 1
            line = LogLine(self._last, self._clock.unix_ns(), record.levelno, record.name, text)
            self._lines.append(line)
            self._num_bytes += line.size_bytes
            self._forget()

    def read(self, after: int, level: int, most: int) -> tuple[Sequence[LogLine], int]:
        """Returns the newest `most` lines of at least this level that came after the line with the number `after`,
        oldest first, and the number of the last line of all. A number that is yet to come counts as 0: it is of another
        process."""
        with self._guard:
            self._forget()
            after = after if after <= self._last else 0
            newer = (line for line in reversed(self._lines) if line.number > after and line.level >= level)
            return list(islice(newer, most))[::-1], self._last

    def _forget(self) -> None:
        oldest_ns = self._clock.unix_ns() - KEPT_NS
        while self._lines and (
            len(self._lines) > MAX_LINES or self._num_bytes > MAX_BYTES or self._lines[0].unix_ns < oldest_ns
        ):
            self._num_bytes -= self._lines.popleft().size_bytes
