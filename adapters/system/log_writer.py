"""Log lines written by a thread of their own: a handler may block (a full pipe, a stopped terminal), its caller not.

The queue in between is bounded; lines it cannot take are counted, and the count is logged when there is room again.
"""

import logging
import queue
import threading
from collections.abc import Mapping
from typing import TypeAlias

_Line: TypeAlias = tuple[logging.Logger, int, str, Mapping[str, str]]


class LogWriter:
    """`write` from any thread; never blocks, never raises. `close` is idempotent."""

    def __init__(self, max_lines: int = 8_192) -> None:
        self._queue: queue.Queue[_Line | None] = queue.Queue(max_lines)
        self._num_lost = 0
        self._thread = threading.Thread(target=self._run, name="cairn-log-writer", daemon=True)
        self._thread.start()

    def write(self, logger: logging.Logger, level: int, line: str, about: Mapping[str, str] | None = None) -> None:
        """`about`: what handlers find as attributes of the record."""
        if not logger.isEnabledFor(level):
            return
        try:
            self._queue.put_nowait((logger, level, line, about or {}))
        except queue.Full:
            self._num_lost += 1

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is queued and end the thread; waits about `timeout_s` seconds at most."""
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=timeout_s)
            except queue.Full:
                return
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            logger, level, line, about = entry
            try:
                logger.log(level, "%s", line, extra=about)
                if self._num_lost:
                    lost, self._num_lost = self._num_lost, 0
                    logger.warning("%d lines were not logged: the log is slower than the server", lost)
            except Exception:  # a handler with a defect must not end all logging
                self._num_lost += 1
