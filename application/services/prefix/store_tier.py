"""The store tier: the store behind its write queue, read by workers whose reads can be abandoned.

Reads and upkeep (deletes, notes of use) have threads of their own, so no read waits for a write. A call that hangs on
its volume cannot be stopped. While a read is late the store counts as stuck: no read is started, waiting reads are
abandoned, and requests use what is in memory, until the late read returns. From then on one request at a time reads,
until a read returns in time. There are no timers: lateness is noticed when a caller looks at a read.

Records that were read are uploaded to the device by the worker that read them or, where only that thread may, by the
compute thread. A read that cannot be uploaded is used as it is: restoring it takes longer.
"""

from asyncio import wait_for, wrap_future
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, TypeAlias, TypeVar

from application.events import FaultObserved
from application.ports.cache_stats import Cleared
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.faults import described
from application.services.lane import Call, Lane, LaneFull
from application.services.prefix.record_source import Arrived
from application.services.prefix.write_behind import WriteBehind
from domain.errors import ServerUnavailable, StoreUnresponsive
from domain.prefix.fingerprint import NamespaceFilter
from domain.prefix.index import RecordNeed
from domain.prefix.record import Record, RecordKey, StatePayload

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 20.0

NUM_READERS = 5
"""Reads under way at a time. Each waits for its slowest record, which the store's own threads (at most twelve) decode:
while some do, the others keep those threads busy."""

RECORDS_PER_READ = 4
"""Records of one read, which arrive together and are uploaded together: the first uploads begin after this number, and
this number is left to upload when the last was decoded. Each read has its own timeout."""

MAX_UPKEEP = 1024
"""Deletes and notes of use that may wait; more are left undone, which costs room or recency."""

Upload: TypeAlias = Callable[[Sequence[StatePayload]], Sequence[StatePayload]]
"""Returns the same states in the compute backend's memory, or unchanged where an upload gains nothing. Any thread."""


class StoreRead(Call[T]):
    """One read of the store, made by a worker and polled by its caller."""

    def __init__(
        self, tier: "StoreTier", work: Callable[[], T], on_done: Callable[[], None], reader: object | None
    ) -> None:
        """`on_done` is called by the worker when the read has ended, with or without an answer. `reader`: as in
        `StoreTier.read`."""
        super().__init__(work)
        self.reader = self if reader is None else reader
        self._tier = tier
        self.future.add_done_callback(lambda future: None if future.cancelled() else on_done())

    @property
    def is_hopeless(self) -> bool:
        """True when no answer can arrive in time: the read is late itself, or waits behind a late one."""
        return not self.is_done and self._tier.is_stuck

    def abandon(self) -> None:
        if self.future.cancel():
            self._tier.read_ended(self)

    def begin(self) -> bool:
        has_begun = super().begin()
        if has_begun:
            self._tier.read_began(self)
        return has_begun

    def ended(self, error: BaseException | None) -> None:
        super().ended(error)
        self._tier.read_ended(self, error)


class StoreTier:
    """The tier. Any thread. `writer`: None when nothing is persisted; then the tier is always empty, and its
    threads only run the work of `read`, `answer` and `await_upkeep`."""

    name = "store"

    def __init__(
        self,
        clock: Clock,
        events: EventSink,
        writer: WriteBehind | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        upload: Upload | None = None,
        uploads_on_compute_thread: bool = False,
        readers: Lane | None = None,
        upkeep: Lane | None = None,
    ) -> None:
        """`timeout_s`: the limit of one read. `upload`: None where nothing is gained. With `uploads_on_compute_thread`
        that thread calls `uploaded` with what was read, read by read while workers read on."""
        self.clock = clock
        self.events = events
        self.writer = writer
        self.uploads_on_compute_thread = uploads_on_compute_thread
        self._timeout_s = timeout_s
        self._upload = upload
        self._readers = readers or Lane("restore", NUM_READERS)
        self._upkeep = upkeep or Lane("upkeep", 1, max_pending=MAX_UPKEEP)
        self._lock = Lock()
        self._open: dict[StoreRead[Any], int | None] = {}  # the time (ns) at which each read began; None: it waits
        self._late: set[StoreRead[Any]] = set()
        self._is_slow = False  # the last read that returned was late

    def begin_reads(
        self, needs: Sequence[RecordNeed], on_done: Callable[[], None], reader: object
    ) -> "list[tuple[slice, StoreRead[Arrived] | None]]":
        """Begins to read records, queued ones too, as `read`; see RecordSource."""
        if self.writer is None:
            return []
        parts = [slice(at, at + RECORDS_PER_READ) for at in range(0, len(needs), RECORDS_PER_READ)]
        return [(part, self.read(partial(self._fetch, self.writer, needs[part]), on_done, reader)) for part in parts]

    def is_overdue(self, began_ns: int, num_arrived: int) -> bool:
        """Returns whether reads wait for a late one; each has a timeout of its own."""
        return self.is_stuck

    def note_late(self, began_ns: int, num_records: int) -> None:
        """Does nothing: `is_stuck` has reported it."""

    def drop(self, keys: Sequence[RecordKey]) -> None:
        """Lets a worker delete records with all that follows them."""
        if keys and self.writer is not None:
            self._keep_up(partial(self.writer.delete, keys))

    def touch(self, keys: Sequence[RecordKey]) -> None:
        """Lets a worker note a use."""
        if keys and self.writer is not None:
            self._keep_up(partial(self.writer.store.touch, keys))

    def clear(self, choice: NamespaceFilter) -> Cleared:
        """Remove the chosen namespaces from queue and store, also those that no model of this process used. Blocks,
        perhaps for long."""
        if self.writer is None:
            return Cleared()
        report = self.writer.erase(None if choice.is_everything else choice.includes)
        return Cleared(0, report.num_records, report.num_bytes, report.problem)

    def uploaded(self, records: Sequence[Record | None]) -> Sequence[Record | None]:
        """The records of one read, uploaded."""
        if self._upload is None:
            return records
        payloads = [payload for record in records if record is not None for payload in record.groups.values()]
        try:
            uploaded = iter(self._upload(payloads))
        except Exception as error:  # out of device memory, most likely
            self._fault("prefix.land", described(error))
            return records
        return [
            record and replace(record, groups={index: next(uploaded) for index in record.groups}) for record in records
        ]

    @property
    def is_stuck(self) -> bool:
        """True while a read is late. Each late read is reported as a fault when it is first noticed."""
        with self._lock:
            late = {read for read, began_ns in self._open.items() if self._is_late(began_ns)}
            num_fresh = len(late - self._late)
            self._late |= late
        for _ in range(num_fresh):
            self._fault("store.read_timeout", f"a read has not returned for {self._timeout_s:g} s; going on without")
        return bool(late)

    def read(
        self, work: Callable[[], T], on_done: Callable[[], None] = lambda: None, reader: object | None = None
    ) -> StoreRead[T] | None:
        """Runs `work`, which reads the store, in a worker. Returns None while the store is stuck and, after a late
        read, while another `reader` (None: this call alone) reads."""
        read = StoreRead(self, work, on_done, reader)
        if self.is_stuck:
            return None
        with self._lock:
            if self._is_slow and any(other.reader is not read.reader for other in self._open):
                return None
            self._open[read] = None
        try:
            self._readers.start(read)
        except ServerUnavailable:  # stopping: as if the store did not answer
            read.abandon()
        return read

    async def answer(self, work: Callable[[], T]) -> T:
        """Returns the result of `work`, which reads the store, for a caller on an event loop. Raises StoreUnresponsive
        after the read timeout, by the loop's clock, and at once while the store is stuck."""
        read = self.read(work)
        if read is None:
            raise _unresponsive(self._timeout_s)
        try:
            return await _within(self._timeout_s, read.future)
        finally:
            read.abandon()

    async def await_upkeep(self, work: Callable[[], T], timeout_s: float | None = None) -> T:
        """Returns the result of blocking `work` on the one upkeep thread, for a caller on an event loop.

        Raises StoreUnresponsive after `timeout_s` (None: the read timeout), by the loop's clock, and at once while the
        store is stuck. Work that has begun continues then.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        if self.is_stuck:
            raise _unresponsive(timeout_s)
        try:
            future = self._upkeep.submit(work)
        except ServerUnavailable:
            raise _unresponsive(timeout_s) from None
        return await _within(timeout_s, future)

    def close(self) -> None:
        """Refuses further work. Running work is not waited for; the writer is closed by its owner."""
        for lane in (self._readers, self._upkeep):
            lane.close()

    def join(self, timeout_s: float) -> bool:
        """Waits for running work, after `close`, at most `timeout_s` in all. Returns False when some still runs."""
        until_ns = self.clock.now_ns() + int(timeout_s * 1e9)
        lanes = (self._readers, self._upkeep)
        return all([lane.join(max(0.0, (until_ns - self.clock.now_ns()) / 1e9)) for lane in lanes])

    def read_began(self, read: StoreRead[T]) -> None:
        """Called by StoreRead."""
        with self._lock:
            self._open[read] = self.clock.now_ns()

    def read_ended(self, read: StoreRead[T], error: BaseException | None = None) -> None:
        """Called by StoreRead when it has run, or never will."""
        with self._lock:
            began_ns = self._open.pop(read, None)
            if began_ns is not None:
                self._is_slow = self._is_late(began_ns)
            self._late.discard(read)
        if error is not None:
            self._fault("store.read", described(error))

    def _fetch(self, writer: WriteBehind, needs: Sequence[RecordNeed]) -> Arrived:
        found = writer.get([need.key for need in needs], [need.groups for need in needs])
        return found if self.uploads_on_compute_thread else self.uploaded(found), ()

    def _is_late(self, began_ns: int | None) -> bool:
        return began_ns is not None and began_ns < self.clock.now_ns() - int(self._timeout_s * 1e9)

    def _keep_up(self, work: Callable[[], object]) -> None:
        try:
            self._upkeep.submit(work).add_done_callback(self._kept_up)
        except LaneFull:
            self._fault("store.upkeep", f"{MAX_UPKEEP} deletes and notes of use wait already; one is left undone")
        except ServerUnavailable:  # stopping
            pass

    def _kept_up(self, future: "Future[object]") -> None:
        try:
            error = future.exception()
        except CancelledError:
            return
        if error is not None:
            self._fault("store.upkeep", described(error))

    def _fault(self, where: str, message: str) -> None:
        self.events.emit(FaultObserved(where, message, self.clock.now_ns()))


async def _within(timeout_s: float, future: "Future[T]") -> T:
    try:
        return await wait_for(wrap_future(future), timeout_s)
    except TimeoutError:
        raise _unresponsive(timeout_s) from None


def _unresponsive(timeout_s: float) -> StoreUnresponsive:
    return StoreUnresponsive(f"the store has not answered within {timeout_s:g} s: its volume hangs or is slow")
