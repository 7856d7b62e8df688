"""The access to a shared store that may be gone: a breaker over all calls, the count of what came of each, and the
queue of records that are written.

    state        leaves by                                        asked
    closed       a failure ──► open                               yes
    open         its pause is over, `begins_trial` ──► on trial   no
    on trial     success ──► closed, failure ──► open, for twice  no
                 the pause, up to MAX_PAUSE_S

Trials are made beside requests, so that no request waits for a server that failed. It begins open, without a pause: the
first trial makes the connection.

    offered ──► queued ──► written | present, another server had put it | dropped, by reason
       └──► dropped: the queue is full, or the store does not answer

Nothing waits for a store that does not answer: what is dropped is computed again by the next server that needs it, and
offered by that one.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from threading import Lock, RLock

from application.events import FaultObserved, SharedStoreUsed
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.shared_store import SharedFailure, SharedStore, SharedStoreError
from application.services.faults import described
from application.services.lane import Lane
from domain.errors import ServerUnavailable
from domain.ids import NO_REQUEST, RequestId
from domain.prefix.record import NamespaceInfo, Record

MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
ASK, READ, WRITE = "ask", "read", "write"
LATE, FAILED = "late", "failed"
QUEUE_FULL, SHUTDOWN = "queue_full", "shutdown"
"""Reasons for which records are dropped, beside those of SharedFailure."""


class SharedAccess:
    """Any thread. `deadline_s`: as in StoreSettings. `counts`: of operation and outcome, records, or calls of ASK.
    `num_bytes`: encoded, by operation. `num_outages`: times that it was opened."""

    def __init__(self, store: SharedStore, events: EventSink, clock: Clock, deadline_s: float) -> None:
        self.store, self.clock, self._events = store, clock, events
        self.deadline_ns = int(deadline_s * 1e9)
        self.counts, self.num_bytes = Counter[tuple[str, str]](), Counter[str]()
        self.num_outages = 0
        self.is_closed = self._is_on_trial = self._is_failing = False
        self._lock = Lock()
        self._until_ns, self._pause_s = clock.now_ns(), MIN_PAUSE_S

    def begins_trial(self) -> bool:
        """Returns True when a trial is due, once: its caller has `try_again` called."""
        with self._lock:
            begins = not (self.is_closed or self._is_on_trial) and self.clock.now_ns() >= self._until_ns
            self._is_on_trial |= begins
            return begins

    def try_again(self) -> None:
        """Makes a trial. Blocks for the store."""
        try:
            self.store.ping()  # connects, which takes longer
            began_ns = self.clock.now_ns()
            self.store.ping()
        except Exception as error:
            self.failed(error)
            return
        if self.clock.now_ns() - began_ns > self.deadline_ns:
            self.note_late()
        with self._lock:
            if self._is_on_trial:  # and no call that began before has failed meanwhile
                self.is_closed, self._is_on_trial, self._is_failing = True, False, False
                self._pause_s = MIN_PAUSE_S

    def failed(self, error: Exception) -> str:
        """Returns the outcome of a call that raised. A store that is full can be read; any other failure opens."""
        if isinstance(error, SharedStoreError):
            outcome, message = error.failure.value, str(error)
        else:
            outcome, message = FAILED, described(error)
        self._open(outcome, message)
        return outcome

    def note_late(self) -> None:
        """Opens: the store did not answer within the deadline of a request."""
        self._open(LATE, f"no answer within {self.deadline_ns / 1e6:g} ms; prompts are computed without it for a while")

    def report(
        self, operation: str, outcome: str, number: int, started_ns: int, id: RequestId = NO_REQUEST, num_bytes: int = 0
    ) -> None:
        """Counts and emits the result of a call: the number of its records, or of those that an ASK found."""
        if number or operation == ASK:
            with self._lock:
                self.counts[operation, outcome] += 1 if operation == ASK else number
                self.num_bytes[operation] += num_bytes
            at_ns = self.clock.now_ns()
            self._events.emit(SharedStoreUsed(operation, outcome, number, num_bytes, started_ns, at_ns, id))

    def _open(self, outcome: str, message: str) -> None:
        """Opens it, or keeps it open. A late failure of a call that began before it was opened changes nothing."""
        now_ns, is_news = self.clock.now_ns(), outcome == SharedFailure.FULL.value
        with self._lock:
            if not is_news and (self.is_closed or self._is_on_trial):
                self.num_outages += self.is_closed
                self.is_closed = self._is_on_trial = False
                self._until_ns = now_ns + int(self._pause_s * 1e9)
                self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
                is_news, self._is_failing = not self._is_failing, True
        if is_news:
            self._events.emit(FaultObserved(f"shared.{outcome}", message, now_ns))


class SharedQueue:
    """Any thread. `num_queued`: records that wait or are being written; `queued_bytes`: their state in memory. Those
    that are held wait until what they captured is verified, and are not counted."""

    def __init__(self, access: SharedAccess, max_bytes: int, lane: Lane | None = None) -> None:
        self._access = access
        self._max_bytes = max_bytes
        self._lane = lane or Lane("shared-write", 1)
        self._lock = RLock()
        self._last: Future[str] | None = None
        self._held: deque[tuple[int, NamespaceInfo, Sequence[Record], RequestId]] = deque()
        self.num_queued = self.queued_bytes = 0

    def hold(self, number: int, info: NamespaceInfo, records: Sequence[Record], id: RequestId) -> None:
        """Offers records once `number` is confirmed."""
        with self._lock:
            self._held.append((number, info, records, id))

    def confirm(self, number: int) -> None:
        """Offers what was held up to `number`."""
        with self._lock:
            while self._held and self._held[0][0] <= number:
                self.offer(*self._held.popleft()[1:])

    def drop_held(self, includes: Callable[[NamespaceInfo], bool] | None) -> None:
        """Drops what is held of these namespaces; None is all."""
        with self._lock:
            self._held = deque(one for one in self._held if includes is not None and not includes(one[1]))

    def offer(self, info: NamespaceInfo, records: Sequence[Record], id: RequestId) -> None:
        """Queues records of one namespace, or drops them and says why. Never blocks on the store."""
        raw_bytes, now_ns = sum(record.raw_bytes for record in records), self._access.clock.now_ns()
        reason = self._refusal(raw_bytes)
        if not reason:
            self._count(len(records), raw_bytes)
            try:
                self._last = self._lane.submit(self._write, info, records, id)
            except ServerUnavailable:
                self._count(-len(records), -raw_bytes)
                reason = SHUTDOWN
            else:
                self._last.add_done_callback(partial(self._settle, len(records), raw_bytes, now_ns, id))
        if reason:
            self._access.report(WRITE, reason, len(records), now_ns, id)

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None) -> None:
        """Removes whole namespaces from the store, behind everything that is queued. Raises SharedStoreError, and
        ServerUnavailable after `close`."""
        self.drop_held(includes)
        self._lane.submit(self._access.store.erase, includes).result()

    def close(self, timeout_s: float) -> None:
        """Refuses more records, and drops what is not written after `timeout_s`."""
        wait([self._last] if self._last is not None else [], timeout_s)
        self._lane.close()

    def _write(self, info: NamespaceInfo, records: Sequence[Record], id: RequestId) -> str:
        """Returns why they were dropped; empty when they were written."""
        access = self._access
        if not access.is_closed:
            return SharedFailure.UNREACHABLE.value
        began_ns = access.clock.now_ns()
        try:
            put = access.store.put(info, records)
        except Exception as error:  # a payload may still lie on a device, which fails in its own ways
            return access.failed(error)
        access.report(WRITE, "present", put.num_present, began_ns, id)
        access.report(WRITE, "written", put.num_written, began_ns, id, put.num_bytes)
        return ""

    def _settle(self, number: int, raw_bytes: int, began_ns: int, id: RequestId, future: "Future[str]") -> None:
        self._count(-number, -raw_bytes)
        if reason := SHUTDOWN if future.cancelled() else future.result():
            self._access.report(WRITE, reason, number, began_ns, id)

    def _count(self, number: int, raw_bytes: int) -> None:
        with self._lock:
            self.num_queued += number
            self.queued_bytes += raw_bytes

    def _refusal(self, raw_bytes: int) -> str:
        if not self._access.is_closed:
            return SharedFailure.UNREACHABLE.value
        return QUEUE_FULL if self.num_queued and self.queued_bytes + raw_bytes > self._max_bytes else ""
