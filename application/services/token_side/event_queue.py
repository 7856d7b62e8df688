"""Telemetry events of the token side, kept until a batch takes them to the text side. Any thread; never blocks."""

from collections import deque

from application.events import Event


class EventQueue:
    """An EventSink for the compute thread and the workers: telling costs them one append."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()

    def emit(self, event: Event) -> None:
        self._events.append(event)

    def take(self) -> tuple[Event, ...]:
        """Everything told since the last time, in order."""
        return tuple(self._events.popleft() for _ in range(len(self._events)))


__all__ = ("EventQueue",)
