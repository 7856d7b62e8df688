"""An EventSink that keeps everything; times are on the same monotonic clock as the client's."""

from dataclasses import dataclass, field

from application.events import Event


@dataclass
class EventLog:
    """Any thread."""

    events: list[Event] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def of(self, name: str) -> list[Event]:
        """Events of one class, by its name."""
        return [event for event in self.events if type(event).__name__ == name]
