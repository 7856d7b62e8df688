"""The sink of typed events: telemetry, logs, tests."""

from typing import Protocol

from application.events import Event


class EventSink(Protocol):
    """Called from the compute thread, workers and the event loop alike: thread-safe, never blocks, never raises."""

    def emit(self, event: Event) -> None: ...
