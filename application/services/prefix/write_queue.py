"""Records on their way to the store: taken in order, bounded by bytes, and readable until they are there.

    offered ──► waiting ──► being written ──► persisted | dropped
       │           └──► withdrawn
       └──► refused

From the moment an offer is taken until it is settled its records are found here, also while they are being written;
settled as persisted, they are in the store already. So whoever asks here first and the store second misses nothing.

What is offered together is taken, settled or refused together. What hangs on a record that was refused, dropped or
withdrawn is refused as well until that record is offered again, so that no chain is left with a hole. Every record ends
in exactly one counter: persisted or dropped (or is still queued). Any thread.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition

from application.ports.cache_stats import QueueCounts
from application.services.prefix.queued_records import QueuedRecords
from domain.ids import BlockHash
from domain.record import BlockKey, Namespace, NamespaceInfo, Record, RecordKey, SnapshotKey
from domain.snapshot_place import SnapshotPlace

QUEUE_FULL = "queue_full"
SHUTDOWN = "shutdown"
DELETED = "deleted"

_MAX_SEVERED = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Records of one namespace, parents first, that are stored together or not at all. `number`: offers are counted."""

    info: NamespaceInfo
    records: tuple[Record, ...]
    raw_bytes: int
    number: int = 0


class WriteQueue:
    """See the module docstring. `max_bytes`: of payload, waiting and being written."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._changed = Condition()
        self._waiting: deque[Offer] = deque()
        self._writing: list[Offer] = []
        self._records = QueuedRecords()
        self._severed: dict[RecordKey, None] = {}
        self._queued_bytes = 0
        self._num_queued = 0
        self._num_offers = 0
        self._enqueued = 0
        self._persisted = 0
        self._dropped: Counter[str] = Counter()
        self._is_closed = False

    def offer(self, info: NamespaceInfo, records: Sequence[Record]) -> str | None:
        """Take records, or refuse them all and say why.

        A batch larger than the whole queue is taken when the queue is empty, so that nothing is refused for ever.
        """
        raw_bytes = raw_bytes_of(records)
        with self._changed:
            reason = self._why_refused(records, raw_bytes)
            if reason is not None:
                self._sever(records, reason)
                return reason
            self._num_offers += 1
            self._waiting.append(Offer(info, tuple(records), raw_bytes, self._num_offers))
            self._records.add(records)
            for record in records:
                self._severed.pop(record.key, None)
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

    def settle(self, offer: Offer, reason: str | None) -> int:
        """An offer that was taken is persisted (`reason` None) or dropped. Returns the bytes still queued."""
        with self._changed:
            self._writing.remove(offer)
            if reason is None:
                self._persisted += len(offer.records)
            else:
                self._sever(offer.records, reason)
            self._release(offer.records, offer.raw_bytes)
            return self._queued_bytes

    def withdraw(self, keys: Sequence[RecordKey]) -> set[RecordKey]:
        """Drop what waits of these records and of everything that hangs on them here, and name it. What is being
        written cannot be called back: see `await_written`."""
        with self._changed:
            doomed = self._records.below(keys)
            waiting, self._waiting = self._waiting, deque()
            gone: list[Record] = []
            for offer in waiting:
                lost = [record for record in offer.records if record.key in doomed]
                kept = tuple(record for record in offer.records if record.key not in doomed)
                gone += lost
                if kept:
                    self._waiting.append(Offer(offer.info, kept, offer.raw_bytes - raw_bytes_of(lost), offer.number))
            if gone:
                self._sever(gone, DELETED)
                self._release(gone, raw_bytes_of(gone))
            return {record.key for record in gone}

    def await_written(self, keys: Sequence[RecordKey]) -> None:
        """Wait until none of these records, and nothing that hangs on them, is being written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_writing(keys))

    def is_writing(self, keys: Sequence[RecordKey]) -> bool:
        """Whether one of these records, or something that hangs on them, is being written."""
        with self._changed:
            return self._is_writing(keys)

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

    def counts(self) -> QueueCounts:
        with self._changed:
            dropped = dict(self._dropped)
            return QueueCounts(self._enqueued, self._persisted, self._num_queued, self._queued_bytes, dropped)

    def get(self, keys: Sequence[RecordKey]) -> list[Record | None]:
        """The records that are here, whole; None for the others."""
        with self._changed:
            return [self._records.get(key) for key in keys]

    def find_snapshots(self, namespace: Namespace, places: Sequence[SnapshotPlace]) -> list[list[SnapshotKey]]:
        """The snapshots here of one prompt at each place, ascending by `num_partial`."""
        with self._changed:
            return [self._records.find_snapshots(namespace, place) for place in places]

    def snapshots(self, namespace: Namespace, blocks: Sequence[BlockHash]) -> list[list[SnapshotKey]]:
        """The snapshots here that hang on each block (or on the namespace itself), in no order."""
        with self._changed:
            return [self._records.snapshots(namespace, block) for block in blocks]

    def children(self, namespace: Namespace, parent: BlockHash) -> dict[BlockKey, tuple[int, ...]]:
        """The blocks here that follow `parent`, with their token ids."""
        with self._changed:
            return self._records.children(namespace, parent)

    def outer_parents(self) -> list[BlockKey]:
        """The blocks that are not here and that something here hangs on."""
        with self._changed:
            return self._records.outer_parents()

    def below(self, keys: Sequence[RecordKey]) -> set[RecordKey]:
        """Those of `keys` that are here, and everything here that hangs on any of them."""
        with self._changed:
            return self._records.below(keys)

    def of_namespace(self, namespace: Namespace) -> list[RecordKey]:
        with self._changed:
            return self._records.of_namespace(namespace)

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
        if any(parent in self._severed for parent in parents):
            return QUEUE_FULL
        is_full = self._waiting and self._queued_bytes + raw_bytes > self._max_bytes
        return QUEUE_FULL if is_full else None

    def _sever(self, records: Sequence[Record], reason: str) -> None:
        self._dropped[reason] += len(records)
        for record in records:
            self._severed[record.key] = None
        while len(self._severed) > _MAX_SEVERED:
            del self._severed[next(iter(self._severed))]

    def _release(self, records: Sequence[Record], raw_bytes: int) -> None:
        self._records.remove(records)
        self._num_queued -= len(records)
        self._queued_bytes -= raw_bytes
        self._changed.notify_all()

    def _is_writing(self, keys: Sequence[RecordKey]) -> bool:
        affected = self._records.below(keys)
        return any(record.key in affected for offer in self._writing for record in offer.records)


def raw_bytes_of(records: Sequence[Record]) -> int:
    """Bytes of payload, before encoding."""
    return sum(payload.size_bytes for record in records for payload in record.groups.values())


__all__ = ("DELETED", "QUEUE_FULL", "SHUTDOWN", "Offer", "QueueCounts", "WriteQueue", "raw_bytes_of")
