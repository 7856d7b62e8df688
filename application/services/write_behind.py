"""The queue in front of the store: takes records without blocking, writes them from a thread of its own.

What is offered together is stored together or not at all. The queue is bounded by bytes; what does not fit is refused,
counted and reported, and with it everything that hangs on it, so that no chain is left with a hole. Every record ends
in exactly one counter: persisted or dropped (or is still queued).
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Condition, Thread
from time import monotonic

from application.events import RecordsDropped, RecordsPersisted
from application.ports.block_store import BlockStore, Presence, PutOutcome
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from domain.record import BlockKey, NamespaceInfo, Record, RecordKey

QUEUE_FULL = "queue_full"
SHUTDOWN = "shutdown"

_MAX_SEVERED = 1 << 16


@dataclass(frozen=True, slots=True)
class WriteBehindCounts:
    """Records since the start; `dropped` by reason: queue_full, orphan, full, unavailable, failed or shutdown.

    At every reading, enqueued = persisted + queued + everything dropped after it was enqueued. What was refused at the
    door (queue_full) was never enqueued.
    """

    enqueued: int = 0
    persisted: int = 0
    queued: int = 0
    queued_bytes: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class _Offer:
    info: NamespaceInfo
    records: tuple[Record, ...]
    raw_bytes: int


class WriteBehind:
    """A RecordWriter. Any thread may offer; one daemon thread writes, `batch_bytes` or so at a time.

    `idle_s`: after that long without work the store's held-back recency is flushed.
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
        self._store = store
        self._events = events
        self._clock = clock
        self._max_bytes = max_bytes
        self._batch_bytes = batch_bytes
        self._idle_s = idle_s
        self._changed = Condition()
        self._queue: deque[_Offer] = deque()
        self._pending: Counter[RecordKey] = Counter()
        self._severed: dict[RecordKey, None] = {}
        self._queued_bytes = 0
        self._num_queued = 0
        self._enqueued = 0
        self._persisted = 0
        self._dropped: Counter[str] = Counter()
        self._closing = False
        self._thread = Thread(target=self._run, name="cairn-write-behind", daemon=True)
        self._thread.start()

    def offer(self, info: NamespaceInfo, records: Sequence[Record]) -> bool:
        """Queue records, parents first, or refuse them all. Never blocks on the store.

        A batch larger than the whole queue is taken when the queue is empty, so that nothing is refused for ever.
        """
        raw_bytes = sum(payload.size_bytes for record in records for payload in record.groups.values())
        with self._changed:
            reason = self._why_refused(records, raw_bytes)
            if reason is None:
                self._queue.append(_Offer(info, tuple(records), raw_bytes))
                self._pending.update(record.key for record in records)
                for record in records:
                    self._severed.pop(record.key, None)
                self._queued_bytes += raw_bytes
                self._enqueued += len(records)
                self._num_queued += len(records)
                self._changed.notify_all()
                return True
        self._drop(records, raw_bytes, reason)
        return False

    def lookup(self, keys: Sequence[BlockKey]) -> Sequence[Presence]:
        """As the store's, with PENDING for what is queued or being written."""
        with self._changed:
            pending = [key in self._pending for key in keys]
        # Asked second, so that a record on its way is seen in at least one of the two places.
        found = self._store.lookup(keys)
        return [
            Presence.PENDING if waits and presence is Presence.MISS else presence
            for waits, presence in zip(pending, found, strict=True)
        ]

    def counts(self) -> WriteBehindCounts:
        with self._changed:
            return WriteBehindCounts(
                self._enqueued, self._persisted, self._num_queued, self._queued_bytes, dict(self._dropped)
            )

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything offered so far is stored or dropped; False when that takes longer."""
        with self._changed:
            written = self._changed.wait_for(lambda: not self._pending, timeout_s)
        if written:
            self._store.flush()
        return written

    def close(self, timeout_s: float) -> WriteBehindCounts:
        """Refuse new records, write what is queued for at most `timeout_s`, drop and report the rest."""
        deadline_s = monotonic() + timeout_s
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._pending, timeout_s)
            left, self._queue = list(self._queue), deque()
        for offer in left:
            self._settle(offer, SHUTDOWN)
        # The batch being written cannot be called back; what it becomes is in the counts if it ends in time.
        self._thread.join(max(0.0, deadline_s - monotonic()))
        return self.counts()

    def _why_refused(self, records: Sequence[Record], raw_bytes: int) -> str | None:
        if self._closing:
            return SHUTDOWN
        own = {record.key for record in records}
        parents = {BlockKey(record.key.namespace, record.parent) for record in records} - own
        if any(parent in self._severed for parent in parents):
            return QUEUE_FULL
        is_full = self._queue and self._queued_bytes + raw_bytes > self._max_bytes
        return QUEUE_FULL if is_full else None

    def _drop(self, records: Sequence[Record], raw_bytes: int, reason: str) -> None:
        with self._changed:
            self._dropped[reason] += len(records)
            for record in records:
                self._severed[record.key] = None
            while len(self._severed) > _MAX_SEVERED:
                del self._severed[next(iter(self._severed))]
        self._events.emit(RecordsDropped(len(records), raw_bytes, reason, self._clock.now_ns()))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing, self._idle_s)
                batch = self._take()
                if not batch and self._closing:
                    return
            if batch:
                self._write(batch)
            else:
                self._store.flush()

    def _take(self) -> list[_Offer]:
        batch: list[_Offer] = []
        taken_bytes = 0
        while self._queue and (not batch or taken_bytes + self._queue[0].raw_bytes <= self._batch_bytes):
            batch.append(self._queue.popleft())
            taken_bytes += batch[-1].raw_bytes
        return batch

    def _write(self, batch: list[_Offer]) -> None:
        started_ns = self._clock.now_ns()
        for info in {offer.info.namespace: offer.info for offer in batch}.values():
            self._store.open_namespace(info)
        if len(batch) > 1 and self._put([record for offer in batch for record in offer.records]) is None:
            for offer in batch:
                self._settle(offer, None, started_ns)
            return
        # One bad offer must not take the others with it.
        for offer in batch:
            self._settle(offer, self._put(offer.records), started_ns)

    def _put(self, records: Sequence[Record]) -> str | None:
        """None when stored, or else the reason."""
        try:
            outcome = self._store.put(records)
        except Exception:  # a store that breaks its contract must not end the thread
            return "failed"
        return None if outcome is PutOutcome.STORED else outcome.value

    def _settle(self, offer: _Offer, reason: str | None, started_ns: int = 0) -> None:
        """Every offer taken from the queue ends here, once."""
        if reason is not None:
            self._drop(offer.records, offer.raw_bytes, reason)
        with self._changed:
            self._persisted += len(offer.records) if reason is None else 0
            self._queued_bytes -= offer.raw_bytes
            self._num_queued -= len(offer.records)
            for record in offer.records:
                self._pending[record.key] -= 1
                if not self._pending[record.key]:
                    del self._pending[record.key]
            queued_bytes = self._queued_bytes
            self._changed.notify_all()
        if reason is None:
            now_ns = self._clock.now_ns()
            self._events.emit(RecordsPersisted(len(offer.records), offer.raw_bytes, queued_bytes, started_ns, now_ns))


__all__ = ("WriteBehind", "WriteBehindCounts")
