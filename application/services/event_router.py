"""An event sink as a table: what to do for each type of event, and nothing for the rest. A sink that folds
events inherits from it: how one takes events, and what happens when it cannot, is said once.

Invariants: handlers run one at a time; `emit` never raises. A handler's failure is counted, and logged with its
traceback the first time for each type of event, so that a defect in telemetry is seen without flooding the log.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

Handler: TypeAlias = Callable[[Any], object]
T = TypeVar("T")

_logger = logging.getLogger("cairn.events")


class EventRouter:
    """An EventSink. `handlers` maps an event type to what handles it; they must not block. What a sink tells itself
    besides the events of all may have handlers too."""

    def __init__(self, name: str, handlers: Mapping[type, Handler]) -> None:
        self._name = name
        self._handlers = dict(handlers)
        self._lock = threading.Lock()
        self._failures: dict[str, int] = {}

    def emit(self, event: object) -> None:
        handler = self._handlers.get(type(event))
        if handler is None:
            return
        try:
            with self._lock:
                handler(event)
        except Exception as error:
            self._note(type(event).__name__, error)

    def between(self, read: Callable[[], T]) -> T:
        """What `read` returns, while no handler runs. Any thread; events wait meanwhile, so it must be quick."""
        with self._lock:
            return read()

    def failures(self) -> Mapping[str, int]:
        """Events it could not take, by type. Any thread."""
        return dict(self._failures)

    def _note(self, event_name: str, error: Exception) -> None:
        count = self._failures.get(event_name, 0) + 1
        self._failures[event_name] = count
        if count == 1:
            _logger.error(
                "%s could not take a %s; later failures are only counted", self._name, event_name, exc_info=error
            )
