"""Event sinks over others: none, several as one, and a table of handlers by event type.

A sink promises never to raise; neither the fan-out nor the router relies on it. The defect of one sink or handler costs
neither the engine nor the other sinks anything: failures are counted, and the first of each kind is logged with its
traceback.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from application.events import Event
from application.ports.event_sink import EventSink

Handler: TypeAlias = Callable[[Any], object]
T = TypeVar("T")

_logger = logging.getLogger("cairn.events")


class NullEvents:
    """An EventSink that ignores every event."""

    def emit(self, event: Event) -> None:
        return


class EventFanOut:
    """An EventSink that passes every event to each of `sinks`, in their order."""

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = tuple(sink for sink in sinks if not isinstance(sink, NullEvents))
        self._failures: dict[str, int] = {}

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            try:
                sink.emit(event)
            except Exception as error:
                name = type(sink).__name__
                if _count(self._failures, name) == 1:
                    _logger.error("event sink %s raised; later failures are only counted", name, exc_info=error)

    def failures(self) -> Mapping[str, int]:
        """How often a sink raised, by its class. Any thread."""
        return dict(self._failures)


class EventRouter:
    """An EventSink, and the base of sinks that fold events: a table from event type to handler. Handlers run one at a
    time and must not block; `emit` never raises. Types without a handler are ignored, and may be a sink's own."""

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
            name = type(event).__name__
            if _count(self._failures, name) == 1:
                _logger.error(
                    "%s could not handle a %s; later failures are only counted", self._name, name, exc_info=error
                )

    def between(self, read: Callable[[], T]) -> T:
        """Returns `read()`, called while no handler runs. Any thread; events wait meanwhile, so it must be quick."""
        with self._lock:
            return read()

    def failures(self) -> Mapping[str, int]:
        """How often a handler raised, by event type. Any thread."""
        return dict(self._failures)


def _count(failures: dict[str, int], name: str) -> int:
    failures[name] = failures.get(name, 0) + 1
    return failures[name]
