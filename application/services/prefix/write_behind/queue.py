"""Records on their way to the store: taken in order, bounded by bytes, and readable until they are there.

    offered ──► waiting ──► being written ──► persisted | dropped
       │           └──► withdrawn
       └──► refused

From the moment an offer is taken until it is settled its records are found here by key, also while they are being
written. Settled as persisted, they are in the store already. So whoever asks here first and the store second misses
nothing; the prefix indexes are told of each step.

What is offered together is taken, settled or refused together. Every record ends in exactly one counter: persisted or
dropped (or is still queued). Any thread.

A chain in the store must have no hole. So a record that is refused, dropped or withdrawn is remembered as lost, and
what follows it is refused as well, until the lost record is offered again:

    offered    block 0    block 1    block 2    block 1, block 2
    queue      has room   is full    has room   has room
    outcome    taken      refused    refused    taken
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from threading import Condition

from application.ports.cache_stats import QueueCounts
from application.services.prefix.indexes import Indexes
from domain.ids import NOBODY, RequestId
from domain.prefix.index import QUEUED, STORED
from domain.prefix.record import BlockKey, NamespaceInfo, Record, RecordKey
from domain.prefix.record_links import RecordLinks

QUEUE_FULL = "queue_full"
SHUTDOWN = "shutdown"
DELETED = "deleted"

_MAX_LOST = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Records of one namespace, parents first, that are stored together or not at all. `number`: offers are counted.
    `id`: whose they are; `offered_ns`: since when they wait. Both for telemetry."""

    info: NamespaceInfo
    records: tuple[Record, ...]
    raw_bytes: int
    number: int = 0
    id: RequestId = NOBODY
    offered_ns: int = 0


class WriteQueue:
    """See the module docstring. `max_bytes`: of payload, waiting and being written. `indexes`: told what is queued, and
    what is stored."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.indexes = Indexes()
        self._changed = Condition()
        self._waiting: deque[Offer] = deque()
        self._writing: list[Offer] = []
        # A record that waits more than once is here until its last copy goes; copies are alike, as their key says all.
        self._records: dict[RecordKey, Record] = {}
        self._copies: Counter[RecordKey] = Counter()
        self._links = RecordLinks()
        # Refused, dropped or withdrawn, and not offered again since: what follows one of them is refused.
        self._lost: dict[RecordKey, str] = {}
        self._queued_bytes = 0
        self._num_queued = 0
        self._num_offers = 0
        self._enqueued = 0
        self._persisted = 0
        self._dropped: Counter[str] = Counter()
        self._is_closed = False

    @property
    def queued_bytes(self) -> int:
        """Of payload, waiting and being written; may be a moment old."""
        return self._queued_bytes

    def offer(
        self, info: NamespaceInfo, records: Sequence[Record], id: RequestId = NOBODY, at_ns: int = 0
    ) -> str | None:
        """Take records, or refuse them all and say why.

        A batch larger than the whole queue is taken when the queue is empty, so that nothing is refused for ever.
        """
        raw_bytes = _raw_bytes(records)
        with self._changed:
            reason = self._why_refused(records, raw_bytes)
            if reason is not None:
                self._lose(records, reason)
                return reason
            self._num_offers += 1
            self._waiting.append(Offer(info, tuple(records), raw_bytes, self._num_offers, id, at_ns))
            for record in records:
                self._add(record)
                self._lost.pop(record.key, None)
            self._queued_bytes += raw_bytes
            self._enqueued += len(records)
            self._num_queued += len(records)
            self._changed.notify_all()
            return None

    def take(self, batch_bytes: int, timeout_s: float = 0.0) -> list[Offer] | None:
        """The next offers to write, `batch_bytes` of payload or so, each to be settled. Waits for the first of them;
        empty when there was none in time, None when there will be none any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed, timeout_s)
            batch: list[Offer] = []
            taken_bytes = 0
            while self._waiting and (not batch or taken_bytes + self._waiting[0].raw_bytes <= batch_bytes):
                batch.append(self._waiting.popleft())
                taken_bytes += batch[-1].raw_bytes
            self._writing += batch
            return None if self._is_closed and not batch else batch

    def settle(self, offer: Offer, reason: str | None, absent: Collection[RecordKey] = ()) -> int:
        """An offer that was taken is persisted (`reason` None) or dropped. `absent`: records that were stored and have
        left since. Returns the bytes still queued."""
        with self._changed:
            self._writing.remove(offer)
            if reason is None:
                self._persisted += len(offer.records)
                self.indexes.add([record.key for record in offer.records if record.key not in absent], STORED)
            else:
                self._lose(offer.records, reason)
            self._release(offer.records, offer.raw_bytes)
            return self._queued_bytes

    def withdraw(self, keys: Sequence[RecordKey]) -> set[RecordKey]:
        """Drop what waits of these records and of everything here that follows them, and name it. What is being
        written cannot be called back: see `await_written`."""
        with self._changed:
            doomed = self._below(keys)
            waiting, self._waiting = self._waiting, deque()
            gone: list[Record] = []
            for offer in waiting:
                lost = [record for record in offer.records if record.key in doomed]
                kept = tuple(record for record in offer.records if record.key not in doomed)
                gone += lost
                if kept:
                    self._waiting.append(replace(offer, records=kept, raw_bytes=offer.raw_bytes - _raw_bytes(lost)))
            if gone:
                self._lose(gone, DELETED)
                self._release(gone, _raw_bytes(gone))
            return {record.key for record in gone}

    def await_written(self, keys: Sequence[RecordKey]) -> None:
        """Wait until none of these records, and nothing that follows them, is being written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_writing(keys))

    def await_empty(self, timeout_s: float) -> bool:
        """Wait until everything is settled; False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._records, timeout_s)

    def mark(self) -> int:
        """For `is_settled`: everything offered so far."""
        with self._changed:
            return self._num_offers

    def is_settled(self, mark: int) -> bool:
        """Whether everything offered up to `mark` is stored, dropped or withdrawn, whatever was offered since."""
        with self._changed:
            first = next(iter(self._waiting), None)  # they wait in order
            is_taken = first is None or first.number > mark
            return is_taken and all(offer.number > mark for offer in self._writing)

    def close(self) -> None:
        """Refuse everything from now on. What waits can still be taken."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def why_lost(self, key: RecordKey) -> str | None:
        """Why a record was refused, dropped or withdrawn and has not been offered again; None: it was not, or that was
        long ago."""
        with self._changed:
            return self._lost.get(key)

    def counts(self, now_ns: int = 0) -> QueueCounts:
        """`now_ns`: of the clock that offers were made by."""
        with self._changed:
            dropped = dict(self._dropped)
            oldest_ns = min((offer.offered_ns for offer in (*self._writing, *self._waiting)), default=now_ns)
            return QueueCounts(
                enqueued=self._enqueued,
                persisted=self._persisted,
                queued=self._num_queued,
                queued_bytes=self._queued_bytes,
                lag_s=max(0, now_ns - oldest_ns) / 1e9,
                dropped=dropped,
            )

    def get(self, keys: Sequence[RecordKey]) -> list[Record | None]:
        """The records that are here, whole; None for the others."""
        with self._changed:
            return [self._records.get(key) for key in keys]

    def chosen(self, includes: Callable[[NamespaceInfo], bool] | None) -> list[RecordKey]:
        """What is here of the namespaces that `includes` says; None: of all."""
        with self._changed:
            offers = [offer for offer in (*self._waiting, *self._writing) if includes is None or includes(offer.info)]
            return list({record.key: None for offer in offers for record in offer.records})

    def _why_refused(self, records: Sequence[Record], raw_bytes: int) -> str | None:
        if self._is_closed:
            return SHUTDOWN
        own = {record.key for record in records}
        parents = {BlockKey(record.key.namespace, record.parent) for record in records} - own
        if any(parent in self._lost for parent in parents):
            return QUEUE_FULL
        is_full = self._waiting and self._queued_bytes + raw_bytes > self._max_bytes
        return QUEUE_FULL if is_full else None

    def _lose(self, records: Sequence[Record], reason: str) -> None:
        self._dropped[reason] += len(records)
        for record in records:
            self._lost[record.key] = reason
        while len(self._lost) > _MAX_LOST:
            del self._lost[next(iter(self._lost))]

    def _release(self, records: Sequence[Record], raw_bytes: int) -> None:
        for record in records:
            self._remove(record)
        self._num_queued -= len(records)
        self._queued_bytes -= raw_bytes
        self._changed.notify_all()

    def _add(self, record: Record) -> None:
        self._copies[record.key] += 1
        if self._copies[record.key] == 1:
            self._records[record.key] = record
            self._links.add(record)
            self.indexes.add((record.key,), QUEUED)

    def _remove(self, record: Record) -> None:
        self._copies[record.key] -= 1
        if not self._copies[record.key]:
            del self._copies[record.key]
            self._links.discard(self._records.pop(record.key))
            self.indexes.remove((record.key,), QUEUED)

    def _below(self, keys: Iterable[RecordKey]) -> set[RecordKey]:
        found: set[RecordKey] = set()
        ahead = list(keys)
        while ahead:
            key = ahead.pop()
            if key in self._records:
                found.add(key)
            if isinstance(key, BlockKey):
                ahead += self._links.following(key) - found
        return found

    def _is_writing(self, keys: Sequence[RecordKey]) -> bool:
        """One of these records, or something that follows them."""
        affected = self._below(keys)
        return any(record.key in affected for offer in self._writing for record in offer.records)


def _raw_bytes(records: Sequence[Record]) -> int:
    return sum(record.raw_bytes for record in records)


__all__ = ("DELETED", "QUEUE_FULL", "SHUTDOWN", "Offer", "QueueCounts", "WriteQueue")
