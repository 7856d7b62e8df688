"""Sinks that remember everything they were given."""

import threading
from collections.abc import Sequence

from application.events import Event
from domain.ids import RequestId
from domain.stream import Failed, Finished, StreamItem


class RecordingSink:
    """An OutputSink; tests wait on it from another thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: dict[RequestId, list[StreamItem]] = {}

    def deliver(self, batch: Sequence[tuple[RequestId, StreamItem]]) -> None:
        with self._changed:
            for id, item in batch:
                self._items.setdefault(id, []).append(item)
            self._changed.notify_all()

    def wait_for_end(self, id: RequestId, timeout_s: float) -> list[StreamItem]:
        """All items of a request once it ended; an AssertionError if it does not."""

        def ended() -> bool:
            return bool(items := self._items.get(id)) and isinstance(items[-1], Finished | Failed)

        with self._changed:
            assert self._changed.wait_for(ended, timeout_s), f"{id} did not end"
            return list(self._items[id])


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


__all__ = ("RecordingEvents", "RecordingSink")
