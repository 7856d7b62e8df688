"""Stores records from a thread of its own, so that whoever computes them never waits for the store.

From the moment an offer is taken until its records are stored they are read here as if they were stored: reads ask the
queue first and the store second, and a record leaves the queue only once it is in the store, so there is no moment at
which one that was accepted is in neither. One that is dropped after all is a miss from then on.

Batches are prepared ahead of the one that is written, one at least however large they are, so that the store encodes
while it writes.

One bad offer does not take others with it, and a store that fails costs what was offered meanwhile: counted, reported,
and never an error of the one who offered.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from typing import TypeVar

from application.events import RecordsDropped, RecordsPersisted, StoreFault
from application.events.cache import RecordsOffered
from application.ports.block_store import BlockStore, EraseReport, PreparedPut, PutOutcome
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.prefix.indexes import Indexes
from application.services.prefix.write_behind.queue import SHUTDOWN, Offer, QueueCounts, WriteQueue
from domain.ids import NOBODY, GroupIndex, RequestId
from domain.prefix.record import NamespaceInfo, Record, RecordKey

_EVERYTHING_BYTES = 1 << 62
_Result = TypeVar("_Result")

FAILED_FAULT = "contract"
"""A store raised, against its contract: told each time, by type and message."""


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Offers that are stored together. `put` None: the store would not prepare them. `begun_ns`: since when it does."""

    offers: Sequence[Offer]
    put: PreparedPut | None
    begun_ns: int

    @property
    def raw_bytes(self) -> int:
        return sum(offer.raw_bytes for offer in self.offers)


class WriteBehind:
    """Reads what waits and what is stored, and whoever has something to store offers it here. Any thread.

    `store`: what is stored already, and nothing else: what a restart would find.
    """

    def __init__(
        self,
        store: BlockStore,
        events: EventSink,
        clock: Clock,
        *,
        max_bytes: int,
        batch_bytes: int = 64 << 20,
        ahead_bytes: int = 256 << 20,
        idle_s: float = 30.0,
    ) -> None:
        """`max_bytes`: payload that may wait. The thread writes `batch_bytes` or so at a time, and has the store
        prepare more until `ahead_bytes` are, or one batch more; after `idle_s` without work held-back recency is
        flushed."""
        self.store = store
        self._queue = WriteQueue(max_bytes)
        self._events = events
        self._clock = clock
        self._batch_bytes = batch_bytes
        self._ahead_bytes = min(ahead_bytes, max_bytes // 4)
        self._ahead: deque[_Batch] = deque()
        self._prepared_bytes = 0
        self._written_ns = 0
        self._idle_s = idle_s
        self._thread = Thread(target=self._run, name="cairn-write-behind", daemon=True)
        self._start()

    def tell(self, indexes: Indexes) -> None:
        """Keep these true, of what waits and what is stored. Before anything is offered."""
        self._queue.indexes = indexes
        self.store.watch(indexes.note_gone)

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        wanted = groups if groups is not None else [None] * len(keys)
        waiting = self._queue.get(keys)
        found = [record and record.limited(chosen) for record, chosen in zip(waiting, wanted, strict=True)]
        absent = [index for index, record in enumerate(found) if record is None]
        if absent:
            stored = self.store.get([keys[index] for index in absent], [wanted[index] for index in absent])
            for index, record in zip(absent, stored, strict=True):
                found[index] = record
        return found

    def touch(self, keys: Sequence[RecordKey]) -> None:
        self.store.touch(keys)

    # ---- writing and removing ----------------------------------------------------------------------------------

    def offer(self, info: NamespaceInfo, records: Sequence[Record], id: RequestId = NOBODY) -> bool:
        """Queue records of one namespace, parents first, or refuse them all: then nothing that follows them should be
        offered either. `id`: the request that they are of. Never blocks on the store."""
        at_ns, raw_bytes = self._clock.now_ns(), sum(record.raw_bytes for record in records)
        reason = self._queue.offer(info, records, id, at_ns)
        if reason is None:
            self._events.emit(RecordsOffered(id, len(records), raw_bytes, at_ns))
        else:
            self._events.emit(RecordsDropped(len(records), raw_bytes, reason, at_ns, id, was_offered=False))
        return reason is None

    def delete(self, keys: Sequence[RecordKey]) -> None:
        """Remove records with all that follows them, waiting or stored. Blocks while one of them is being written:
        that cannot be called back. What waits and follows what went with them is dropped as an orphan in its turn."""
        self._withdraw(keys)
        self.store.delete(keys)

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> EraseReport:
        """As the store does, with what waits."""
        waiting = self._withdraw(self._queue.chosen(includes))
        report = self.store.erase(includes)
        return replace(report, num_records=report.num_records + len(waiting))

    # ---- waiting -----------------------------------------------------------------------------------------------

    def mark(self) -> int:
        """For `is_settled`: everything offered so far. Never blocks."""
        return self._queue.mark()

    def is_settled(self, mark: int) -> bool:
        """Whether everything offered up to `mark` is stored or dropped, whatever was offered since. Never blocks."""
        return self._queue.is_settled(mark)

    @property
    def held_bytes(self) -> int:
        """What is held for the store, at most: `WriteQueue.queued_bytes`, and what was made of them ahead."""
        return self._queue.queued_bytes + self._prepared_bytes

    def why_lost(self, key: RecordKey) -> str | None:
        """As `WriteQueue.why_lost`."""
        return self._queue.why_lost(key)

    def counts(self) -> QueueCounts:
        return self._queue.counts(self._clock.now_ns())

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything offered so far is stored or dropped; False when that takes longer."""
        written = self._queue.await_empty(timeout_s)
        if written:
            self.store.flush()
        return written

    def close(self, timeout_s: float) -> QueueCounts:
        """Refuse new records, write what is queued for at most `timeout_s`, drop and report the rest."""
        until_ns = self._clock.now_ns() + int(timeout_s * 1e9)
        self._queue.close()
        self._queue.await_empty(timeout_s)
        late = list(iter(self._next_ahead, None))
        self._prepared_bytes -= sum(batch.raw_bytes for batch in late)
        prepared = [offer for batch in late for offer in batch.offers]
        for offer in (*prepared, *(self._queue.take(_EVERYTHING_BYTES) or ())):
            self._settle(offer, SHUTDOWN)
        # The batch being written cannot be called back; what it becomes is in the counts if it ends in time.
        self._thread.join(max(0.0, (until_ns - self._clock.now_ns()) / 1e9))
        return self.counts()

    # ---- the thread --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while (offers := self._take()) is not None or self._ahead:
            if offers:
                self._ahead.append(self._prepare(offers))
            elif (batch := self._next_ahead()) is not None:
                self._write(batch)
            else:
                self._guarded(self.store.flush)

    def _take(self) -> list[Offer] | None:
        """Offers to prepare. Empty when enough is prepared, or nothing waits; None when nothing will any more."""
        if len(self._ahead) > 1 and self._prepared_bytes >= self._ahead_bytes:
            return []
        return self._queue.take(self._batch_bytes, 0.0 if self._ahead else self._idle_s)

    def _next_ahead(self) -> _Batch | None:
        """What was prepared first. Whoever closes takes it from the thread."""
        try:
            return self._ahead.popleft()
        except IndexError:
            return None

    def _prepare(self, offers: Sequence[Offer]) -> _Batch:
        now_ns = self._clock.now_ns()
        for info in {offer.info.namespace: offer.info for offer in offers}.values():
            self._guarded(partial(self.store.open_namespace, info))
        records = [record for offer in offers for record in offer.records]
        put = self._guarded(partial(self.store.prepare, records))
        batch = _Batch(offers, put, now_ns)
        self._prepared_bytes += batch.raw_bytes
        return batch

    def _write(self, batch: _Batch) -> None:
        started_ns = max(batch.begun_ns, self._written_ns)
        reason = self._put(batch.put) if batch.put is not None else "failed"
        self._written_ns = self._clock.now_ns()
        self._prepared_bytes -= batch.raw_bytes
        for offer in batch.offers:
            # One bad offer must not take the others with it.
            retry = reason is not None and len(batch.offers) > 1
            self._settle(offer, self._put(partial(self.store.put, offer.records)) if retry else reason, started_ns)

    def _put(self, put: PreparedPut) -> str | None:
        """None when stored, or else the reason."""
        self._queue.indexes.begin_put()
        outcome = self._guarded(put)
        if outcome is None:
            return "failed"
        return None if outcome is PutOutcome.STORED else outcome.value

    def _absent(self, offer: Offer) -> Collection[RecordKey]:
        """Records of an offer that was just stored which are not in the store: making room for a large batch may push
        out its own first records, or push out what it then stores again."""
        gone = self._queue.indexes.gone_since_put([record.key for record in offer.records])
        if not gone:
            return ()
        found = self._guarded(lambda: self.store.get(gone, [frozenset[GroupIndex]()] * len(gone))) or [None] * len(gone)
        return [key for key, record in zip(gone, found, strict=True) if record is None]

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
            dropped_ns = self._clock.now_ns()
            self._events.emit(RecordsDropped(len(offer.records), offer.raw_bytes, reason, dropped_ns, offer.id))
        absent = self._absent(offer) if reason is None else ()
        queued_bytes = self._queue.settle(offer, reason, absent)
        if reason is None:
            now_ns = self._clock.now_ns()
            self._events.emit(
                RecordsPersisted(
                    num_records=len(offer.records),
                    raw_bytes=offer.raw_bytes,
                    queued_bytes=queued_bytes,
                    started_ns=started_ns,
                    at_ns=now_ns,
                    offered_ns=offer.offered_ns,
                    id=offer.id,
                )
            )

    def _withdraw(self, keys: Sequence[RecordKey]) -> set[RecordKey]:
        """Drop what waits of these records and of everything in the queue that follows them, and name it. When it
        returns, none of them is being written either: it is stored or dropped. Counted and not reported: somebody
        wanted it."""
        gone = self._queue.withdraw(keys)
        self._await_written([*keys, *gone])
        return gone

    def _await_written(self, keys: Sequence[RecordKey]) -> None:
        self._queue.await_written(keys)
