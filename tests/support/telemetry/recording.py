"""A sink that remembers everything it was given."""

import threading
from typing import Any

from application.events import Event


class RecordingEvents:
    """An EventSink."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        with self._lock:
            self.events.append(event)

    def of(self, kind: type | str) -> list[Any]:
        """Events of one class, or of the class of this name."""
        with self._lock:
            return [event for event in self.events if kind in (type(event), type(event).__name__)]
