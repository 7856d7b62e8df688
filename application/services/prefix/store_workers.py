"""The threads that wait for the store, so that nobody else does: for reads a deadline, for everything a bound.

A call that hangs on its volume cannot be stopped, so its thread is left there. As long as a read is late the store
counts as stuck: no read is started, those that wait give up, and everybody does with what is in memory. When it returns
after all, the store is asked again. So no more threads hang than there are, whoever asks and however often. Time is
looked at when somebody looks at a read: there are no timers.

    answers ──a read is late──► stuck ──it returns──► suspect: one read at a time ──that one is in time──► answers
                                  ▲                        │
                                  └────it is late too──────┘

Lookups have their own lane, or they would wait for everybody's state to be read, and so have deletes and notes of use,
which wait for writes. Any thread.
"""

from asyncio import wait_for, wrap_future
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from threading import Lock
from typing import Any, TypeVar

from application.events import FaultObserved
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.prefix.store_read import StoreRead
from domain.errors import StoreUnresponsive

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 20.0

MAX_UPKEEP = 1024
"""Deletes and notes of use that may wait; beyond that they are left undone, which costs room or recency."""


def _nobody() -> None:
    pass


class StoreWorkers:
    """`readers` read state, `lookups` read indexes, `upkeep` deletes and notes uses; by default all one executor."""

    def __init__(
        self,
        clock: Clock,
        events: EventSink,
        readers: Executor,
        lookups: Executor | None = None,
        upkeep: Executor | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._clock = clock
        self._events = events
        self._readers = readers
        self._lookups = lookups or readers
        self._upkeep = upkeep or readers
        self._timeout_s = timeout_s
        self._lock = Lock()
        self._running: dict[StoreRead[Any], int] = {}
        self._late: set[StoreRead[Any]] = set()
        self._is_suspect = False
        self._probe: StoreRead[Any] | None = None
        self._num_upkeep = 0

    @property
    def is_stuck(self) -> bool:
        """Whether a read is late. Each is counted as a fault when that is first noticed."""
        if not self._running:
            return False
        latest_ns = self._clock.now_ns() - int(self._timeout_s * 1e9)
        with self._lock:
            late = {read for read, started_ns in self._running.items() if started_ns < latest_ns}
            fresh = late - self._late
            self._late |= fresh
            self._is_suspect |= bool(fresh)
        for _ in fresh:
            self._note("store.read_timeout", f"a read has not returned for {self._timeout_s:g} s; going on without")
        return bool(late)

    def read(self, work: Callable[[], T], on_done: Callable[[], None] = _nobody) -> StoreRead[T] | None:
        """Start to read state; None while the store is stuck. `on_done` is called by the worker."""
        return self._start(self._readers, work, on_done)

    def look_up(self, work: Callable[[], T], on_done: Callable[[], None] = _nobody) -> StoreRead[T] | None:
        """The same for an index read."""
        return self._start(self._lookups, work, on_done)

    async def answer(self, work: Callable[[], T]) -> T:
        """What `work` reads, for somebody on an event loop. Raises StoreUnresponsive after the deadline, by the loop's
        clock, and at once while the store is stuck."""
        read = self._start(self._readers, work, _nobody)
        if read is None:
            raise self._unresponsive()
        try:
            return await wait_for(wrap_future(read.future), self._timeout_s)
        except TimeoutError:
            raise self._unresponsive() from None
        finally:
            read.abandon()

    def keep_up(self, work: Callable[[], object]) -> None:
        """Delete or note something, some time."""
        with self._lock:
            is_full = self._num_upkeep >= MAX_UPKEEP
            self._num_upkeep += not is_full
        if is_full:
            self._note("store.upkeep", f"{MAX_UPKEEP} deletes and notes of use wait already; one is left undone")
            return
        try:
            self._upkeep.submit(work).add_done_callback(self._kept_up)
        except RuntimeError:  # shut down
            with self._lock:
                self._num_upkeep -= 1

    async def await_upkeep(self, work: Callable[[], T], timeout_s: float | None = None) -> T:
        """What blocking work gives that one thread does for all who ask, for somebody on an event loop.

        Raises StoreUnresponsive after `timeout_s` (None: what reads are given), by the loop's clock, and at once while
        the store is stuck. What has begun goes on then.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        if self.is_stuck:
            raise self._unresponsive()
        try:
            future = self._upkeep.submit(work)
        except RuntimeError:  # shut down
            raise self._unresponsive() from None
        try:
            return await wait_for(wrap_future(future), timeout_s)
        except TimeoutError:
            raise self._unresponsive(timeout_s) from None
        finally:
            future.cancel()

    def began(self, read: StoreRead[T]) -> None:
        with self._lock:
            self._running[read] = self._clock.now_ns()

    def ended(self, read: StoreRead[T], error: Exception | None) -> None:
        with self._lock:
            self._running.pop(read, None)
            self._is_suspect &= read is not self._probe or read in self._late
            self._late.discard(read)
            self._probe = None if read is self._probe else self._probe
        if error is not None:
            self._note("store.read", f"{type(error).__name__}: {error}")

    def dropped(self, read: StoreRead[T]) -> None:
        with self._lock:
            self._probe = None if read is self._probe else self._probe

    def _start(self, lane: Executor, work: Callable[[], T], on_done: Callable[[], None]) -> StoreRead[T] | None:
        if self.is_stuck:
            return None
        read = StoreRead(self, work, on_done)
        with self._lock:
            if self._is_suspect:
                if self._probe is not None:
                    return None
                self._probe = read
        try:
            lane.submit(read)
        except RuntimeError as error:  # shut down
            read.refuse(error)
            self.dropped(read)
        return read

    def _kept_up(self, future: "Future[object]") -> None:
        with self._lock:
            self._num_upkeep -= 1
        try:
            error = future.exception()
        except CancelledError:
            return
        if error is not None:
            self._note("store.upkeep", f"{type(error).__name__}: {error}")

    def _unresponsive(self, timeout_s: float | None = None) -> StoreUnresponsive:
        allowed_s = self._timeout_s if timeout_s is None else timeout_s
        return StoreUnresponsive(f"the store has not answered within {allowed_s:g} s: its volume hangs or is slow")

    def _note(self, where: str, message: str) -> None:
        self._events.emit(FaultObserved(where, message, self._clock.now_ns()))


__all__ = ("DEFAULT_TIMEOUT_S", "MAX_UPKEEP", "StoreWorkers")
