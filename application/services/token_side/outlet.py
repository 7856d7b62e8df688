"""What the token side gives out: items and telemetry events, in one batch a step.

The receiver must not raise, by contract. Of one that does nothing is lost: what it refused comes with the next batch.
"""

from collections.abc import Callable
from typing import TypeVar

from application.events import Event, FaultObserved
from application.ports.clock import Clock
from application.ports.engine import EngineItem, StepBatch
from application.services.faults import described
from application.services.token_side.event_queue import EventQueue
from domain.ids import RequestId

T = TypeVar("T")


class Outlet:
    """Compute thread only. `events`: what workers tell goes out with the next batch."""

    def __init__(self, receive: Callable[[StepBatch], None], events: EventQueue, clock: Clock) -> None:
        self._receive = receive
        self._queue = events
        self._clock = clock
        self._items: list[tuple[RequestId, int, EngineItem]] = []
        self._events: list[Event] = []
        self._num_left_queue = 0

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def emit(self, event: Event) -> None:
        self._queue.emit(event)

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

    def send(self, id: RequestId, choice: int, item: EngineItem) -> None:
        """Keep an item for the next `deliver`."""
        self._items.append((id, choice, item))

    def left_queue(self) -> None:
        """A choice was admitted, or ended before that. Once for each."""
        self._num_left_queue += 1

    def deliver(self) -> None:
        """Hand over what came since the last time, if anything did: one wake-up of the text side."""
        self._events += self._queue.take()
        if not (self._items or self._events or self._num_left_queue):
            return
        batch = StepBatch(self.now_ns(), tuple(self._items), tuple(self._events), self._num_left_queue)
        try:
            self._receive(batch)
        except Exception as error:
            self.fault("engine.deliver", error)
            return
        self._items.clear()
        self._events.clear()
        self._num_left_queue = 0


__all__ = ("Outlet",)
