"""The way of records to the shared store: a lane of one thread, and a bound on what waits for it.

    offered ──► queued ──► written | present, another server had put it | dropped, by reason
       └──► dropped: the queue is full, the store was full lately, or does not answer

Records that wait are held in memory, so the queue is bounded by bytes. Nothing waits for a store that does not answer:
what is dropped is computed again by the next server that needs it, and offered by that one.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from threading import Lock

from application.ports.shared_store import SharedFailure
from application.services.lane import Lane
from application.services.prefix.shared.access import WRITE, SharedAccess
from domain.errors import ServerUnavailable
from domain.ids import RequestId
from domain.prefix.record import NamespaceInfo, Record

QUEUE_FULL, SHUTDOWN = "queue_full", "shutdown"
"""Reasons for which records are dropped, beside those of SharedFailure."""

FULL_PAUSE_S = 10.0
"""Seconds without a write after the store said that it is full: it takes a megabyte to hear it again."""


class SharedQueue:
    """Any thread. `num_queued`: records that wait or are being written; `queued_bytes`: their state in memory."""

    def __init__(self, access: SharedAccess, max_bytes: int, lane: Lane | None = None) -> None:
        self._access = access
        self._max_bytes = max_bytes
        self._lane = lane or Lane("shared-write", 1)
        self._lock = Lock()
        self._last: Future[str] | None = None
        self._full_until_ns = 0
        self.num_queued = self.queued_bytes = 0

    def offer(self, info: NamespaceInfo, records: Sequence[Record], id: RequestId) -> None:
        """Queues records of one namespace, or drops them and says why. Never blocks on the store."""
        raw_bytes, now_ns = sum(record.raw_bytes for record in records), self._access.clock.now_ns()
        reason = self._refusal(raw_bytes, now_ns)
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
            outcome = access.failed(error)
            if outcome == SharedFailure.FULL.value:
                self._full_until_ns = access.clock.now_ns() + int(FULL_PAUSE_S * 1e9)
            return outcome
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

    def _refusal(self, raw_bytes: int, now_ns: int) -> str:
        if now_ns < self._full_until_ns:
            return SharedFailure.FULL.value
        if not self._access.is_closed:
            return SharedFailure.UNREACHABLE.value
        return QUEUE_FULL if self.num_queued and self.queued_bytes + raw_bytes > self._max_bytes else ""
