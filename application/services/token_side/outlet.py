"""What the compute thread gives out: events at once, stream items in one batch a step.

Neither sink may raise, by contract; one that does costs the loop nothing. An event that a sink refuses is counted and
logged by the fan-out; items that could not be delivered are named to the caller, who ends their requests.
"""

from collections.abc import Callable
from typing import TypeVar

from application.events import Event, FaultObserved
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.output_sink import OutputSink
from application.services.event_fan_out import EventFanOut
from application.services.faults import described
from domain.ids import RequestId
from domain.stream import StreamItem

T = TypeVar("T")


class Outlet:
    """Compute thread only."""

    def __init__(self, sink: OutputSink, events: EventSink, clock: Clock) -> None:
        self._sink = sink
        self._events = EventFanOut(events)
        self._clock = clock
        self._batch: list[tuple[RequestId, StreamItem]] = []

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def emit(self, event: Event) -> None:
        self._events.emit(event)

    def fault(self, where: str, error: Exception) -> None:
        """Something failed and was contained; `where` as in FaultObserved."""
        self.emit(FaultObserved(where, described(error), self.now_ns()))

    def attempt(self, where: str, work: Callable[[], T]) -> T | None:
        """Do what must not cost anybody anything: an exception is a fault `where`, and gives None."""
        try:
            return work()
        except Exception as error:
            self.fault(where, error)
            return None

    def send(self, id: RequestId, item: StreamItem) -> None:
        """Keep an item for the next `deliver`."""
        self._batch.append((id, item))

    def deliver(self) -> frozenset[RequestId]:
        """Hand over what was sent since the last time; one wake-up of the consumers. Returns the requests whose items
        may be lost: whether the sink took some of them before it raised is not known."""
        batch, self._batch = self._batch, []
        try:
            if batch:
                self._sink.deliver(batch)
        except Exception as error:
            self.fault("engine.deliver", error)
            return frozenset(id for id, _ in batch)
        return frozenset()


__all__ = ("Outlet",)
