"""The lanes that wait for the store, so that nobody else does.

Reads and upkeep have a lane each: nobody who reads waits for deletes and notes of use, which wait for writes. While a
read is late none is started (see StoreBreaker), so no more threads hang than there are, whoever asks and however often.
"""

from asyncio import wait_for, wrap_future
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import TypeVar

from application.events import FaultObserved
from application.events.cache import RecordsRead
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.faults import described
from application.services.lane import Call, Lane, LaneFull
from application.services.prefix.store_breaker import StoreBreaker
from domain.errors import ServerUnavailable, StoreUnresponsive
from domain.prefix.record import Record

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 20.0

NUM_READERS = 3
"""Reads under way at a time. Each waits for its slowest record, which the store's own threads decode: while one does,
two more keep them busy (with two in all, a simulated eight of them rested for 11 to 25 % of the time)."""

MAX_UPKEEP = 1024
"""Deletes and notes of use that may wait; beyond that they are left undone, which costs room or recency."""


class StoreRead(Call[T]):
    """One read of the store on its way: made by a lane, looked at by whoever wants its answer."""

    def __init__(self, lanes: "StoreLanes", work: Callable[[], T], on_done: Callable[[], None]) -> None:
        """`on_done` is called by the worker when there is an answer, or will be none."""
        super().__init__(work)
        self._lanes = lanes
        self.future.add_done_callback(lambda future: None if future.cancelled() else on_done())

    @property
    def is_done(self) -> bool:
        return self.future.done()

    @property
    def is_hopeless(self) -> bool:
        """Nothing comes of it in time: it is late itself, or waits behind one that is."""
        return not self.is_done and self._lanes.is_stuck

    @property
    def answer(self) -> T | None:
        """Once done; None when it failed, against the contract: whoever asked goes on without."""
        has_failed = self.future.cancelled() or self.future.exception() is not None
        return None if has_failed else self.future.result()

    def abandon(self) -> None:
        """Nobody wants the answer any more: what has not begun never does. Repeating it does nothing."""
        if self.future.cancel():
            self._lanes.ended(self)

    def begin(self) -> bool:
        has_begun = super().begin()
        if has_begun:
            self._lanes.began(self)
        return has_begun

    def ended(self, error: BaseException | None) -> None:
        super().ended(error)
        self._lanes.ended(self, error)


class StoreLanes:
    """Any thread. The lanes are given by tests only."""

    def __init__(
        self,
        clock: Clock,
        events: EventSink,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        readers: Lane | None = None,
        upkeep: Lane | None = None,
    ) -> None:
        """`timeout_s`: what a read may take."""
        self._clock = clock
        self._events = events
        self._timeout_s = timeout_s
        self._readers = readers or Lane("restore", NUM_READERS)
        self._upkeep = upkeep or Lane("upkeep", 1, max_pending=MAX_UPKEEP)
        self._breaker = StoreBreaker(timeout_s)

    @property
    def is_stuck(self) -> bool:
        """Whether a read is late. Each is counted as a fault when that is first noticed."""
        is_stuck, num_fresh = self._breaker.look(self._clock.now_ns())
        for _ in range(num_fresh):
            self.fault("store.read_timeout", f"a read has not returned for {self._timeout_s:g} s; going on without")
        return is_stuck

    def read(self, work: Callable[[], T], on_done: Callable[[], None] = lambda: None) -> StoreRead[T] | None:
        """Start to read; None while the store is stuck."""
        read = StoreRead(self, work, on_done)
        if self.is_stuck or not self._breaker.admits(read):
            return None
        try:
            self._readers.start(read)
        except ServerUnavailable:  # stopping: as if the store did not answer
            read.abandon()
        return read

    async def answer(self, work: Callable[[], T]) -> T:
        """What `work` reads, for somebody on an event loop. Raises StoreUnresponsive after the deadline, by the loop's
        clock, and at once while the store is stuck."""
        read = self.read(work)
        if read is None:
            raise self._unresponsive(self._timeout_s)
        try:
            return await self._within(self._timeout_s, read.future)
        finally:
            read.abandon()

    def keep_up(self, work: Callable[[], object]) -> None:
        """Delete or note something, some time."""
        try:
            self._upkeep.submit(work).add_done_callback(self._kept_up)
        except LaneFull:
            self.fault("store.upkeep", f"{MAX_UPKEEP} deletes and notes of use wait already; one is left undone")
        except ServerUnavailable:  # stopping
            pass

    async def await_upkeep(self, work: Callable[[], T], timeout_s: float | None = None) -> T:
        """What blocking work gives that one thread does for all who ask, for somebody on an event loop.

        Raises StoreUnresponsive after `timeout_s` (None: what reads are given), by the loop's clock, and at once while
        the store is stuck. What has begun goes on then.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        if self.is_stuck:
            raise self._unresponsive(timeout_s)
        try:
            future = self._upkeep.submit(work)
        except ServerUnavailable:
            raise self._unresponsive(timeout_s) from None
        return await self._within(timeout_s, future)

    def close(self) -> None:
        """Start nothing more. What runs is not waited for."""
        for lane in (self._readers, self._upkeep):
            lane.close()

    def join(self, timeout_s: float) -> bool:
        """After `close`: wait for what runs, at most so long in all. False when something does still."""
        until_ns = self._clock.now_ns() + int(timeout_s * 1e9)
        lanes = (self._readers, self._upkeep)
        return all([lane.join(max(0.0, (until_ns - self._clock.now_ns()) / 1e9)) for lane in lanes])

    def fault(self, where: str, message: str) -> None:
        """Tell that something failed and was contained; `where` as in FaultObserved."""
        self._events.emit(FaultObserved(where, message, self._clock.now_ns()))

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def read_records(self, found: Sequence[Record | None], started_ns: int) -> None:
        """Tell what a read of records gave."""
        records = [record for record in found if record is not None]
        self._events.emit(
            RecordsRead(
                num_records=len(records),
                raw_bytes=sum(record.raw_bytes for record in records),
                started_ns=started_ns,
                at_ns=self.now_ns(),
            )
        )

    def began(self, read: StoreRead[T]) -> None:
        """For StoreRead."""
        self._breaker.began(read, self._clock.now_ns())

    def ended(self, read: StoreRead[T], error: BaseException | None = None) -> None:
        """For StoreRead: it has run, or never will."""
        self._breaker.ended(read)
        if error is not None:
            self.fault("store.read", described(error))

    def _kept_up(self, future: "Future[object]") -> None:
        try:
            error = future.exception()
        except CancelledError:
            return
        if error is not None:
            self.fault("store.upkeep", described(error))

    async def _within(self, timeout_s: float, future: "Future[T]") -> T:
        try:
            return await wait_for(wrap_future(future), timeout_s)
        except TimeoutError:
            raise self._unresponsive(timeout_s) from None

    def _unresponsive(self, timeout_s: float) -> StoreUnresponsive:
        return StoreUnresponsive(f"the store has not answered within {timeout_s:g} s: its volume hangs or is slow")
