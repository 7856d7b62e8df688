"""What the token side gives out: items and telemetry events, in one batch a step.

Workers and the compute thread tell events at any time; they are kept until a batch takes them along. The receiver must
not raise, by contract. Of one that does nothing is lost: what it refused comes with the next batch.

`Pulse` is what the compute thread says of itself: what it does now, since when, and when it last got something done. It
says what it begins; that it begins something says that the thing before has ended. Only the compute thread writes; any
thread may read, and sees what was true a moment ago.
"""

from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Protocol, TypeVar

from application.events import Event, FaultObserved
from application.ports.clock import Clock
from application.ports.engine import EngineItem, StepBatch
from application.services.faults import described
from domain.health.engine_health import Activity
from domain.ids import RequestId

T = TypeVar("T")


class EventBatcher:
    """An EventSink: `emit` is one append, on any thread. The rest belongs to the compute thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._receive: Callable[[StepBatch], None] = lambda _batch: None
        self._items: list[tuple[RequestId, int, EngineItem]] = []
        self._events: deque[Event] = deque()
        self._num_left_queue = 0
        self._computing: tuple[RequestId, ...] = ()
        self._is_computing_new = False

    def connect(self, receive: Callable[[StepBatch], None]) -> None:
        """Hand batches over to `receive` from now on: what tells events is made before the engine that delivers."""
        self._receive = receive

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def emit(self, event: Event) -> None:
        self._events.append(event)

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

    def computes(self, ids: tuple[RequestId, ...]) -> None:
        """These choices are about to be computed: said before it begins, for whoever outlives this engine."""
        if ids != self._computing:
            self._computing, self._is_computing_new = ids, True
            self.deliver()

    @property
    def computing(self) -> tuple[RequestId, ...]:
        """As reported last."""
        return self._computing

    def take_events(self) -> tuple[Event, ...]:
        """What was told since the last batch; for who delivers it in another way. Any thread."""
        taken: list[Event] = []
        with suppress(IndexError):  # another thread takes them at the same time: an end that was not waited for
            for _ in range(len(self._events)):
                taken.append(self._events.popleft())
        return tuple(taken)

    def deliver(self) -> None:
        """Hand over what came since the last time, if anything did."""
        events = self.take_events()
        if not (self._items or events or self._num_left_queue or self._is_computing_new):
            return
        computing = self._computing if self._is_computing_new else None
        batch = StepBatch(self.now_ns(), tuple(self._items), events, self._num_left_queue, computing)
        try:
            self._receive(batch)
        except Exception as error:
            self._events.extendleft(reversed(events))
            self.fault("engine.deliver", error)
            return
        self._items.clear()
        self._num_left_queue, self._is_computing_new = 0, False


class Named(Protocol):
    """A sequence that the compute thread works on."""

    @property
    def request_id(self) -> RequestId: ...


class Pulse:
    """`now_ns`: any thread."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self.last_step_ns = now_ns()
        """When a step, a call or a piece of a load last ended, or a call was taken up."""
        self._does: tuple[str, int, Collection[Named]] = ("start", self.last_step_ns, ())

    @property
    def last_progress_ns(self) -> int:
        """When something last ended, the idle thread's waking up included."""
        return self._does[1]

    @property
    def activity(self) -> Activity:
        kind, since_ns, runs = self._does
        ids: dict[RequestId, None] = dict.fromkeys(run.request_id for run in tuple(runs))
        return Activity(kind, since_ns, tuple(ids))

    def begin(self, kind: str, runs: Collection[Named] = ()) -> None:
        """`runs`: for whom; nobody changes it any more."""
        self._does = (kind, self._now_ns(), runs)

    def step(self) -> None:
        """Something that was asked for is done, or taken up."""
        self.last_step_ns = self._now_ns()
