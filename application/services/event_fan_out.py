"""Several event sinks as one, and none as one.

A sink promises never to raise; the fan-out does not rely on it: one sink's defect costs neither the engine nor the
other sinks anything. Failures are counted by sink, and the first of each is logged.
"""

import logging
from collections.abc import Mapping

from application.events import Event
from application.ports.event_sink import EventSink

_logger = logging.getLogger("cairn.events")


class NullEvents:
    """An EventSink that forgets everything."""

    def emit(self, event: Event) -> None:
        return


class EventFanOut:
    """An EventSink that hands every event to each of `sinks`, in their order."""

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = tuple(sink for sink in sinks if not isinstance(sink, NullEvents))
        self._failures: dict[str, int] = {}

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            try:
                sink.emit(event)
            except Exception as error:
                self._note(type(sink).__name__, error)

    def failures(self) -> Mapping[str, int]:
        """How often a sink raised, by its class. Any thread."""
        return dict(self._failures)

    def _note(self, sink_name: str, error: Exception) -> None:
        count = self._failures.get(sink_name, 0) + 1
        self._failures[sink_name] = count
        if count == 1:
            _logger.error("event sink %s raised; later failures are only counted", sink_name, exc_info=error)
