"""What the compute thread gives out: events at once, stream items in one batch a step."""

from application.events import Event
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.output_sink import OutputSink
from domain.ids import RequestId
from domain.stream import StreamItem


class Outlet:
    """Compute thread only."""

    def __init__(self, sink: OutputSink, events: EventSink, clock: Clock) -> None:
        self._sink = sink
        self._events = events
        self._clock = clock
        self._batch: list[tuple[RequestId, StreamItem]] = []

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def emit(self, event: Event) -> None:
        self._events.emit(event)

    def send(self, id: RequestId, item: StreamItem) -> None:
        """Keep an item for the next `deliver`."""
        self._batch.append((id, item))

    def deliver(self) -> None:
        """Hand over what was sent since the last time; one wake-up of the consumers."""
        if self._batch:
            batch, self._batch = self._batch, []
            self._sink.deliver(batch)


__all__ = ("Outlet",)
