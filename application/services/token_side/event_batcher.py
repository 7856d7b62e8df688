"""The output of the token side: items and telemetry events, handed over in one batch a step.

Workers and the compute thread emit events at any time; they are kept until the next batch. The receiver must not raise,
by contract. If one does, nothing is lost: its batch comes with the next one.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from typing import Protocol

from application.events import Event, FaultObserved
from application.ports.clock import Clock
from application.ports.engine import EngineItem, StepBatch
from application.services.faults import described
from domain.health.engine_health import Activity
from domain.ids import RequestId


class EventBatcher:
    """An EventSink: `emit` is one append, on any thread. The rest belongs to the compute thread. `computing`: the
    choices that are being computed, as reported last."""

    def __init__(self, clock: Clock) -> None:
        self.computing: tuple[RequestId, ...] = ()
        self._clock = clock
        self._receive: Callable[[StepBatch], None] = lambda _batch: None
        self._items: list[tuple[RequestId, int, EngineItem]] = []
        self._events: deque[Event] = deque()
        self._num_left_queue = 0
        self._is_computing_new = self._is_mute = False

    def connect(self, receive: Callable[[StepBatch], None]) -> None:
        """Delivers batches to `receive` from now on. Emitters are made before the engine that delivers."""
        self._receive = receive

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def emit(self, event: Event) -> None:
        self._events.append(event)

    def fault(self, where: str, error: Exception) -> None:
        """Emits a failure that was contained; `where` as in FaultObserved."""
        self.emit(FaultObserved(where, described(error), self.now_ns()))

    @contextmanager
    def attempt(self, where: str) -> Generator[None]:
        """Work whose failure must harm no request: an exception ends it, and is a fault `where`."""
        try:
            yield
        except Exception as error:
            self.fault(where, error)

    def send(self, id: RequestId, choice: int, item: EngineItem) -> None:
        """Keeps an item for the next `deliver`."""
        if not self._is_mute:
            self._items.append((id, choice, item))

    def left_queue(self) -> None:
        """Counts a choice that was admitted, or ended before. Called once for each."""
        self._num_left_queue += not self._is_mute

    def drop_items(self, *, and_mute: bool) -> None:
        """Drops what was not delivered. `and_mute`: nothing of any choice is reported from now on."""
        self._items.clear()
        self._is_mute = and_mute

    def report_computing(self, ids: tuple[RequestId, ...]) -> None:
        """Delivers at once which choices are computed next, for a supervisor that outlives this engine."""
        if ids != self.computing:
            self.computing, self._is_computing_new = ids, True
            self.deliver()

    def take_events(self) -> tuple[Event, ...]:
        """Returns and removes the events since the last batch, for a caller that delivers them itself. Any thread."""
        taken: list[Event] = []
        with suppress(IndexError):  # another thread may take them at the same time when a stop timed out
            for _ in range(len(self._events)):
                taken.append(self._events.popleft())
        return tuple(taken)

    def deliver(self) -> None:
        """Hands over everything since the last batch, if there is anything."""
        events = self.take_events()
        if not (self._items or events or self._num_left_queue or self._is_computing_new):
            return
        computing = self.computing if self._is_computing_new else None
        batch = StepBatch(self.now_ns(), tuple(self._items), events, self._num_left_queue, computing)
        try:
            self._receive(batch)
        except Exception as error:
            self._events.extendleft(reversed(events))
            self.fault("engine.deliver", error)
            return
        self._items.clear()
        self._num_left_queue, self._is_computing_new = 0, False


class HasRequestId(Protocol):
    """A sequence that the compute thread works on."""

    @property
    def request_id(self) -> RequestId: ...


class ActivityTracker:
    """The present activity of the compute thread, and the times of its last progress. Only the compute thread writes;
    any thread may read, and sees a state that was true a moment ago.

    `last_step_ns`: when a step, a call or a piece of a load last ended, or a call was taken up."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """`now_ns`: callable from any thread."""
        self._now_ns = now_ns
        self.last_step_ns = now_ns()
        self._current: tuple[str, int, Collection[HasRequestId]] = ("start", self.last_step_ns, ())

    @property
    def last_progress_ns(self) -> int:
        """The time at which any activity last ended, including a wake-up of the idle thread."""
        return self._current[1]

    @property
    def now(self) -> Activity:
        kind, since_ns, runs = self._current
        ids: dict[RequestId, None] = dict.fromkeys(run.request_id for run in tuple(runs))
        return Activity(kind, since_ns, tuple(ids))

    def begin(self, kind: str, runs: Collection[HasRequestId] = ()) -> None:
        """Ends the previous activity and begins another. `runs`: the sequences it serves; not changed any more."""
        self._current = (kind, self._now_ns(), runs)

    def progress(self) -> None:
        """Notes that requested work was completed, or taken up."""
        self.last_step_ns = self._now_ns()
