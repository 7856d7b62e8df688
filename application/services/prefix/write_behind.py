"""The write queue in front of the store: records wait here until the writer thread has written them.

    offered ──► waiting ──confirmed──► prepared, written ──► persisted | dropped
       │           └──► withdrawn, or dropped at the end
       └──► refused

From the moment an offer is taken until it is settled its records can be read here by key. A record leaves the queue
only after it is in the store, and `get` reads the queue first, so an accepted record is never missed. Records that are
offered together are taken, settled or refused together, and each ends in exactly one counter.

A chain in the store must have no hole. A record that is refused, dropped or withdrawn is remembered as lost, and what
follows it is refused as well, until the lost record is offered again:

    offered    block 0    block 1    block 2    block 1, block 2
    queue      has room   is full    has room   has room
    outcome    taken      refused    refused    taken

The store prepares (encodes) batches ahead of the one that is written. One bad offer does not fail the others of its
batch. A store that fails costs what was offered meanwhile: that is counted and reported, and never raised.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from threading import Condition, Thread
from typing import TypeAlias, TypeVar

from application.events import RecordsDropped, RecordsPersisted, StoreFault
from application.ports.block_store import BlockStore, EraseReport, PreparedPut, PutOutcome
from application.ports.cache_stats import QueueCounts
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.prefix.indexes import Indexes
from application.services.prefix.offer import Offer, bytes_of
from domain.ids import NO_REQUEST, GroupIndex, RequestId
from domain.prefix.index import QUEUED, STORED
from domain.prefix.record import NamespaceInfo, Record, RecordKey
from domain.prefix.record_tree import parent_of

QUEUE_FULL, SHUTDOWN, DELETED, FAILED = "queue_full", "shutdown", "deleted", "failed"
UNCONFIRMED = "unconfirmed"
"""Reasons for which records are dropped, beside those of PutOutcome."""

FAILED_FAULT = "contract"
"""The kind of the StoreFault that is reported each time a store raises, which its contract forbids."""

_MAX_LOST = 1 << 16
_Result = TypeVar("_Result")


_Batch: TypeAlias = tuple[Sequence[Offer], PreparedPut | None, int]
"""Offers that are stored together, the prepared put (None: preparing failed), and when preparing began (ns)."""


class WriteBehind:
    """The write queue and its thread. Any thread may call it. `store` alone is what a restart would find."""

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
        """`max_bytes` bounds the payload that waits or is being written. The thread writes about `batch_bytes` at a
        time, and has the store prepare at least one batch more, up to `ahead_bytes`. After `idle_s` without work it
        flushes the store."""
        self.store, self._events, self._clock = store, events, clock
        self._indexes = Indexes()
        self._max_bytes = max_bytes
        self._batch_bytes = batch_bytes
        self._ahead_bytes = min(ahead_bytes, max_bytes // 4)
        self._idle_s = idle_s
        self._changed = Condition()
        self._waiting: deque[Offer] = deque()
        self._ahead: deque[_Batch] = deque()
        self._writing: list[Offer] = []  # accepted and not settled: prepared, or being put
        # A record that waits more than once is here until its last copy goes; copies are alike, as their key says all.
        self._records: dict[RecordKey, Record] = {}
        self._copies: Counter[RecordKey] = Counter()
        self._lost: dict[RecordKey, str] = {}
        self._queued_bytes = self._prepared_bytes = self._written_ns = 0
        self.num_offers = self._enqueued = self._persisted = 0
        self._num_confirmed = 1 << 62
        self._dropped: Counter[str] = Counter()
        self._is_closed = False
        self._thread = Thread(target=self._run, name="cairn-write-behind", daemon=True)
        self._start()

    def report_to(self, indexes: Indexes) -> None:
        """Reports queued and stored records to `indexes` from now on. Call it before the first offer."""
        self._indexes = indexes
        self.store.watch(indexes.note_gone)

    def offer(self, info: NamespaceInfo, records: Sequence[Record], id: RequestId = NO_REQUEST) -> bool:
        """Queues records of one namespace, parents first, or refuses them all; after a refusal nothing that follows
        them should be offered. A batch larger than the whole queue is taken when the queue is empty. Never blocks on
        the store."""
        at_ns, raw_bytes = self._clock.now_ns(), bytes_of(records)
        with self._changed:
            reason = self._refusal(records, raw_bytes)
            if reason is not None:
                self._lose(records, reason)
            else:
                self.num_offers += 1
                self._enqueued += len(records)
                self._queued_bytes += raw_bytes
                self._waiting.append(Offer(info, tuple(records), raw_bytes, self.num_offers, id, at_ns))
                for record in records:
                    self._add(record)
                self._changed.notify_all()
        if reason is not None:
            self._events.emit(RecordsDropped(len(records), reason, at_ns, id))
        return reason is None

    def confirm(self, number: int) -> None:
        """Lets offers up to `number` be written. From the first call on, later ones wait for theirs."""
        with self._changed:
            self._num_confirmed = number
            self._changed.notify_all()

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        """Read records that are queued or stored, as `BlockStore.get`."""
        wanted = groups if groups is not None else [None] * len(keys)
        queued = self.queued(keys)
        found = [record and record.limited(chosen) for record, chosen in zip(queued, wanted, strict=True)]
        absent = [index for index, record in enumerate(found) if record is None]
        if absent:
            stored = self.store.get([keys[index] for index in absent], [wanted[index] for index in absent])
            for index, record in zip(absent, stored, strict=True):
                found[index] = record
        return found

    def queued(self, keys: Sequence[RecordKey]) -> list[Record | None]:
        """The records that are queued, whole; None for the others."""
        with self._changed:
            return [self._records.get(key) for key in keys]

    def queued_keys(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> list[RecordKey]:
        """Keys of what is queued in the namespaces that `includes` accepts; None accepts all."""
        with self._changed:
            offers = [offer for offer in (*self._waiting, *self._writing) if includes is None or includes(offer.info)]
            return list({record.key: None for offer in offers for record in offer.records})

    def delete(self, keys: Sequence[RecordKey]) -> None:
        """Remove records with all that follows them, queued or stored. Blocks while one of them is being written. A
        queued record that follows a record only the store had is dropped as an orphan when it is written."""
        self._withdraw(keys)
        self.store.delete(keys)

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> EraseReport:
        """Remove whole namespaces from the queue and, as `BlockStore.erase`, from the store."""
        num_withdrawn = len(self._withdraw(self.queued_keys(includes)))
        report = self.store.erase(includes)
        return replace(report, num_records=report.num_records + num_withdrawn)

    def is_settled(self, mark: int) -> bool:
        """Returns whether all offers up to number `mark` are stored, dropped or withdrawn. Does not wait."""
        with self._changed:
            return all(offer.number > mark for offer in (*self._writing, *self._waiting))

    @property
    def held_bytes(self) -> int:
        """An upper bound on the memory held for the store, in bytes: the queued payload and its prepared form."""
        return self._queued_bytes + self._prepared_bytes

    def loss_reason(self, key: RecordKey) -> str | None:
        """The reason for which a record was refused, dropped or withdrawn and not offered again; None for none."""
        with self._changed:
            return self._lost.get(key)

    def counts(self) -> QueueCounts:
        with self._changed:
            now_ns, queued = self._clock.now_ns(), (*self._writing, *self._waiting)
            oldest_ns = min((offer.offered_ns for offer in queued), default=now_ns)
            return QueueCounts(
                enqueued=self._enqueued,
                persisted=self._persisted,
                queued=sum(len(offer.records) for offer in queued),
                queued_bytes=self._queued_bytes,
                lag_s=max(0, now_ns - oldest_ns) / 1e9,
                dropped=dict(self._dropped),
            )

    def flush(self, timeout_s: float) -> bool:
        """Wait until the queue is empty, then flush the store; False when it is not empty after `timeout_s`."""
        with self._changed:
            is_empty = self._changed.wait_for(lambda: not self._records, timeout_s)
        if is_empty:
            self.store.flush()
        return is_empty

    def close(self, timeout_s: float) -> QueueCounts:
        """Refuse new records, write what is queued and confirmed for at most `timeout_s`, then drop and report the
        rest."""
        until_ns = self._clock.now_ns() + int(timeout_s * 1e9)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._writing or self._is_ready), timeout_s)
            rest = list(self._waiting)
            self._writing += rest
            self._waiting.clear()
        late = [offer for offers, *_ in iter(self._next_batch, None) for offer in offers]
        self._prepared_bytes -= sum(offer.raw_bytes for offer in late)
        for offer in (*late, *rest):
            self._settle(offer, SHUTDOWN if offer.number <= self._num_confirmed else UNCONFIRMED)
        # The batch being written cannot be withdrawn; its outcome is in the counts if it ends in time.
        self._thread.join(max(0.0, (until_ns - self._clock.now_ns()) / 1e9))
        return self.counts()

    def _start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while (offers := self._next_offers()) is not None or self._ahead:
            if offers:
                self._ahead.append(self._prepare(offers))
            elif (batch := self._next_batch()) is not None:
                self._write(batch)
            else:
                self._guarded(self.store.flush)

    def _next_offers(self) -> list[Offer] | None:
        """Returns the offers to prepare; empty when enough is prepared or none waits, None after the queue was
        closed."""
        if len(self._ahead) > 1 and self._prepared_bytes >= self._ahead_bytes:
            return []
        return self._take(self._batch_bytes, 0.0 if self._ahead else self._idle_s)

    def _take(self, batch_bytes: int, timeout_s: float = 0.0) -> list[Offer] | None:
        """Returns the next offers, about `batch_bytes` of payload, each to be settled. Waits for the first one; returns
        an empty list when none arrived in time, None when the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or self._is_closed, timeout_s)
            taken: list[Offer] = []
            taken_bytes = 0
            while self._is_ready and (not taken or taken_bytes + self._waiting[0].raw_bytes <= batch_bytes):
                taken.append(self._waiting.popleft())
                taken_bytes += taken[-1].raw_bytes
            self._writing += taken
            return None if self._is_closed and not taken else taken

    @property
    def _is_ready(self) -> bool:
        return bool(self._waiting) and self._waiting[0].number <= self._num_confirmed

    def _next_batch(self) -> _Batch | None:
        """The batch that was prepared first. `close` may take it from the thread."""
        with self._changed:
            return self._ahead.popleft() if self._ahead else None

    def _prepare(self, offers: Sequence[Offer]) -> _Batch:
        began_ns = self._clock.now_ns()
        for info in {offer.info.namespace: offer.info for offer in offers}.values():
            self._guarded(partial(self.store.open_namespace, info))
        records = [record for offer in offers for record in offer.records]
        put = self._guarded(partial(self.store.prepare, records))
        self._prepared_bytes += bytes_of(records)
        return offers, put, began_ns

    def _write(self, batch: _Batch) -> None:
        offers, put, began_ns = batch
        started_ns = max(began_ns, self._written_ns)
        with self._indexes.removals() as gone:
            reason = self._put(put) if put is not None else FAILED
            self._written_ns = self._clock.now_ns()
            self._prepared_bytes -= sum(offer.raw_bytes for offer in offers)
            for offer in offers:  # alone again after a failed batch: one bad offer fails no other
                is_retried = reason is not None and len(offers) > 1
                own = self._put(partial(self.store.put, offer.records)) if is_retried else reason
                self._settle(offer, own, gone, started_ns)

    def _put(self, put: PreparedPut) -> str | None:
        """Stores a batch. Returns the reason for a failure; None when it was stored."""
        outcome = self._guarded(put)
        return None if outcome is PutOutcome.STORED else outcome.value if outcome is not None else FAILED

    def _guarded(self, call: Callable[[], _Result]) -> _Result | None:
        """Returns None when the call raised: a store that breaks its contract is reported and must not end the
        thread."""
        try:
            return call()
        except Exception as failure:
            message = f"{type(failure).__name__}: {failure}"
            self._events.emit(StoreFault(FAILED_FAULT, message, self._clock.now_ns()))
            return None

    def _settle(self, offer: Offer, reason: str | None, gone: Collection[RecordKey] = (), started_ns: int = 0) -> None:
        """Settles an accepted offer, once. `reason` None: it was stored. `gone`: keys that have left the store since
        its put began."""
        num_records = len(offer.records)
        if reason is not None:
            self._events.emit(RecordsDropped(num_records, reason, self._clock.now_ns(), offer.id))
        absent = self._absent(offer, gone) if reason is None else ()
        with self._changed:
            self._writing.remove(offer)
            if reason is None:
                self._persisted += num_records
                self._indexes.add([record.key for record in offer.records if record.key not in absent], STORED)
            else:
                self._lose(offer.records, reason)
            self._release(offer.records)
        if reason is None:
            self._events.emit(
                RecordsPersisted(
                    num_records=num_records,
                    raw_bytes=offer.raw_bytes,
                    started_ns=started_ns,
                    at_ns=self._clock.now_ns(),
                    offered_ns=offer.offered_ns,
                    id=offer.id,
                )
            )

    def _absent(self, offer: Offer, gone: Collection[RecordKey]) -> Collection[RecordKey]:
        """Records of an offer that was just stored which are not in the store: making room for a large batch may evict
        its own first records, or evict what it then stores again."""
        keys = [record.key for record in offer.records if record.key in gone]
        if not keys:
            return ()
        found = self._guarded(lambda: self.store.get(keys, [frozenset[GroupIndex]()] * len(keys))) or [None] * len(keys)
        return [key for key, record in zip(keys, found, strict=True) if record is None]

    def _withdraw(self, keys: Sequence[RecordKey]) -> set[RecordKey]:
        """Removes the queued ones of these records, and everything queued that follows them; returns their keys.
        Afterwards none of them is being written either. Counted and not reported, because a caller requested it."""
        with self._changed:
            doomed = self._below(keys)
            waiting, self._waiting = self._waiting, deque()
            gone: list[Record] = []
            for offer in waiting:
                gone += (record for record in offer.records if record.key in doomed)
                if kept := tuple(record for record in offer.records if record.key not in doomed):
                    self._waiting.append(replace(offer, records=kept, raw_bytes=bytes_of(kept)))
            self._lose(gone, DELETED)
            self._release(gone)
        withdrawn = {record.key for record in gone}
        self._await_written([*keys, *withdrawn])
        return withdrawn

    def _await_written(self, keys: Sequence[RecordKey]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_writing(keys))

    def _is_writing(self, keys: Sequence[RecordKey]) -> bool:
        """Returns whether one of these records, or something that follows them, is being written."""
        return not self._below(keys).isdisjoint(record.key for offer in self._writing for record in offer.records)

    def _below(self, keys: Sequence[RecordKey]) -> set[RecordKey]:
        """Returns the keys of queued records among these and all that follow them."""
        found, num_before = set(keys), -1
        while len(found) != num_before:  # parents mostly precede their records: the second pass finds no more
            num_before = len(found)
            found.update(key for key, record in self._records.items() if parent_of(record) in found)
        return found & self._records.keys()

    def _refusal(self, records: Sequence[Record], raw_bytes: int) -> str | None:
        if self._is_closed:
            return SHUTDOWN
        own = {record.key for record in records}
        parents = set(map(parent_of, records)) - own
        is_full = self._waiting and self._queued_bytes + raw_bytes > self._max_bytes
        return QUEUE_FULL if is_full or any(parent in self._lost for parent in parents) else None

    def _lose(self, records: Sequence[Record], reason: str) -> None:
        if records:
            self._dropped[reason] += len(records)
        for record in records:
            self._lost[record.key] = reason
        while len(self._lost) > _MAX_LOST:
            del self._lost[next(iter(self._lost))]

    def _add(self, record: Record) -> None:
        self._lost.pop(record.key, None)
        self._copies[record.key] += 1
        if self._copies[record.key] == 1:
            self._records[record.key] = record
            self._indexes.add((record.key,), QUEUED)

    def _release(self, records: Sequence[Record]) -> None:
        for record in records:
            self._copies[record.key] -= 1
            if not self._copies[record.key]:
                del self._copies[record.key]
                del self._records[record.key]
                self._indexes.remove((record.key,), QUEUED)
        self._queued_bytes -= bytes_of(records)
        self._changed.notify_all()
