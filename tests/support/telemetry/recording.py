"""A sink that remembers everything it was given."""

import threading

from application.events import Event


class RecordingEvents:
    """An EventSink."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        with self._lock:
            self.events.append(event)

    def of(self, name: str) -> list[Event]:
        """Events of one class, by its name."""
        with self._lock:
            return [event for event in self.events if type(event).__name__ == name]
