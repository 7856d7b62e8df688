"""Stores records from a thread of its own, so that whoever computes them never waits for the store.

One bad offer does not take others with it, and a store that fails costs what was offered meanwhile: counted, reported,
and never an error of the one who offered.
"""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from time import monotonic
from typing import TypeVar

from application.events import RecordsDropped, RecordsPersisted, StoreFault
from application.ports.block_store import BlockStore, PutOutcome
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.prefix.write_queue import SHUTDOWN, Offer, QueueCounts, WriteQueue, raw_bytes_of
from domain.record import NamespaceInfo, Record, RecordKey

_EVERYTHING_BYTES = 1 << 62
_Result = TypeVar("_Result")

FAILED_FAULT = "contract"
"""A store raised, against its contract: told each time, by type and message."""


class WriteBehind:
    """A RecordWriter. Any thread may offer; one daemon thread writes, `batch_bytes` or so at a time.

    `idle_s`: after that long without work the store's held-back recency is flushed. `queue` is for reading.
    """

    def __init__(
        self,
        store: BlockStore,
        events: EventSink,
        clock: Clock,
        *,
        max_bytes: int,
        batch_bytes: int = 64 << 20,
        idle_s: float = 30.0,
    ) -> None:
        self.store = store
        self.queue = WriteQueue(max_bytes)
        self._events = events
        self._clock = clock
        self._batch_bytes = batch_bytes
        self._idle_s = idle_s
        self._thread = Thread(target=self._run, name="cairn-write-behind", daemon=True)
        self._thread.start()

    def offer(self, info: NamespaceInfo, records: Sequence[Record]) -> bool:
        """Queue records, parents first, or refuse them all. Never blocks on the store."""
        reason = self.queue.offer(info, records)
        if reason is not None:
            self._report_drop(len(records), raw_bytes_of(records), reason)
        return reason is None

    def withdraw(self, keys: Sequence[RecordKey]) -> set[RecordKey]:
        """Drop what waits of these records and of everything that hangs on them in the queue, and name it; waits for
        those that are being written, and then they are in the store or dropped. Counted and not reported: somebody
        wanted it."""
        gone = self.queue.withdraw(keys)
        self.queue.await_written([*keys, *gone])
        return gone

    def counts(self) -> QueueCounts:
        return self.queue.counts()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything offered so far is stored or dropped; False when that takes longer."""
        written = self.queue.await_empty(timeout_s)
        if written:
            self.store.flush()
        return written

    def close(self, timeout_s: float) -> QueueCounts:
        """Refuse new records, write what is queued for at most `timeout_s`, drop and report the rest."""
        deadline_s = monotonic() + timeout_s
        self.queue.close()
        self.queue.await_empty(timeout_s)
        for offer in self.queue.take(_EVERYTHING_BYTES) or ():
            self._settle(offer, SHUTDOWN)
        # The batch being written cannot be called back; what it becomes is in the counts if it ends in time.
        self._thread.join(max(0.0, deadline_s - monotonic()))
        return self.counts()

    def _run(self) -> None:
        while (batch := self.queue.take(self._batch_bytes, self._idle_s)) is not None:
            if batch:
                self._write(batch)
            else:
                self._guarded(self.store.flush)

    def _write(self, batch: Sequence[Offer]) -> None:
        started_ns = self._clock.now_ns()
        for info in {offer.info.namespace: offer.info for offer in batch}.values():
            self._guarded(partial(self.store.open_namespace, info))
        if len(batch) > 1 and self._put([record for offer in batch for record in offer.records]) is None:
            for offer in batch:
                self._settle(offer, None, started_ns)
            return
        # One bad offer must not take the others with it.
        for offer in batch:
            self._settle(offer, self._put(offer.records), started_ns)

    def _put(self, records: Sequence[Record]) -> str | None:
        """None when stored, or else the reason."""
        outcome = self._guarded(partial(self.store.put, records))
        if outcome is None:
            return "failed"
        return None if outcome is PutOutcome.STORED else outcome.value

    def _guarded(self, call: Callable[[], _Result]) -> _Result | None:
        """None when it raised: a store that breaks its contract must not end the thread, and is reported."""
        try:
            return call()
        except Exception as failure:
            message = f"{type(failure).__name__}: {failure}"
            self._events.emit(StoreFault(FAILED_FAULT, message, self._clock.now_ns()))
            return None

    def _settle(self, offer: Offer, reason: str | None, started_ns: int = 0) -> None:
        """Every offer taken from the queue ends here, once."""
        if reason is not None:
            self._report_drop(len(offer.records), offer.raw_bytes, reason)
        queued_bytes = self.queue.settle(offer, reason)
        if reason is None:
            now_ns = self._clock.now_ns()
            self._events.emit(RecordsPersisted(len(offer.records), offer.raw_bytes, queued_bytes, started_ns, now_ns))

    def _report_drop(self, num_records: int, raw_bytes: int, reason: str) -> None:
        self._events.emit(RecordsDropped(num_records, raw_bytes, reason, self._clock.now_ns()))


__all__ = ("FAILED_FAULT", "WriteBehind")
