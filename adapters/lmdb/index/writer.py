"""The write side: batches, deletions and recency, each in transactions of bounded work.

Nothing here contains failures: whatever LMDB or the volume raises aborts the transaction and reaches the caller.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import lmdb

from adapters.lmdb.faults import Damaged
from adapters.lmdb.file.environment import Environment
from adapters.lmdb.format.payload import EncodedRecord
from adapters.lmdb.format.rows import NamespaceRow, described, is_block, record_key, space_of
from adapters.lmdb.index.ledger import Ledger
from adapters.lmdb.index.room import Quota, evict_slice, needed_pages
from application.ports.block_store import NoteGone, PutOutcome
from domain.ids import BlockHash
from domain.prefix.record import BlockKey, Namespace, NamespaceInfo, Record, RecordKey

_DELETE_RECORDS = 512
_DELETE_BYTES = 64 << 20
_TOUCHES = 4096
_ROOM_ROUNDS = 3


@dataclass(slots=True)
class Batch:
    """What one put is about. `encoded`: those of `records` that were absent when they were encoded.

    `touched`: uses to write along; they are taken out as soon as they are written.
    """

    records: Sequence[Record]
    encoded: Mapping[RecordKey, EncodedRecord]
    infos: Mapping[Namespace, NamespaceInfo]
    touched: Sequence[RecordKey] = ()


class Writer:
    """`kept`: keys that eviction passes over. `on_evicted` is told how many records went and why (as in
    RecordsEvicted), after each commit, and `note_gone` which ones were removed, whatever for."""

    def __init__(
        self,
        environment: Environment,
        quota_bytes: int,
        kept: Callable[[], Sequence[RecordKey]],
        on_evicted: Callable[[int, str], None],
    ) -> None:
        self._environment = environment
        self._quota_bytes = quota_bytes
        self._kept = kept
        self._on_evicted = on_evicted
        self.note_gone: NoteGone = lambda _: None
        self._spaces: dict[int, Namespace] = {}

    @property
    def quota(self) -> Quota:
        return Quota(self._quota_bytes, self._environment.geometry.page_bytes)

    def put(self, batch: Batch) -> PutOutcome | None:
        """None: a record counted as present has gone since; encode it and come again. Raises MapFullError when even
        eviction and waiting did not help."""
        needed = needed_pages(self._environment.geometry, list(batch.encoded.values()))
        if needed > self.quota.limit_pages:
            return PutOutcome.FULL
        with self._environment.exclusive():
            for rounds in range(_ROOM_ROUNDS):
                try:
                    return self._put(batch, needed)
                except lmdb.MapFullError:
                    # Either a reader keeps free pages from being used, and evicting would only feed it; or they lie
                    # too scattered for a piece.
                    if self._environment.has_lagging_reader():
                        raise
                    self._evict_to(self._used_pages() - (2 << rounds) * needed, batch)
            return self._put(batch, needed)

    def shrink(self) -> int:
        """Evict down to the limit; returns how many records went."""
        return self._evict_to(self.quota.limit_pages, None)

    def touch(self, keys: Sequence[RecordKey]) -> None:
        for start in range(0, len(keys), _TOUCHES):
            with self._environment.writing() as txn:
                ledger = self._ledger(txn)
                self._touch(ledger, keys[start : start + _TOUCHES])
                ledger.finish()

    def delete(self, key: RecordKey) -> int:
        """With everything that follows it."""
        return self._in_slices(lambda ledger: self._start_of(ledger, key))

    def quarantine(self, record_id: int) -> str:
        """Remove a record that the disk cannot read, with everything that follows it, and leave its pages alone.
        Returns what it was, for people."""
        with self._environment.reading() as txn:
            name = Ledger(txn, self._environment, {}).name_of(record_id)
        if name is None:
            return "a record"
        if is_block(name):
            self._in_slices(lambda ledger: ledger.first_dependant(space_of(name), BlockHash(name[5:])))
        with self._environment.writing() as txn:
            ledger = self._ledger(txn)
            if (row := ledger.row(name)) is not None:
                ledger.remove_leaf(name, row, is_readable=False)
            ledger.finish()
        self._report(ledger, 0, "")
        return described(name)

    def delete_namespace(self, namespace: Namespace) -> int:
        return self._in_slices(lambda ledger: self._first_of(ledger, namespace))

    def transact(self, work: Callable[["lmdb.Transaction[bytes]", Ledger, Callable[[bytes], bool]], int]) -> int:
        """One transaction for `work`, which is told what eviction passes over and returns how much it evicted for its
        age."""
        with self._environment.writing() as txn:
            ledger = self._ledger(txn)
            evicted = work(txn, ledger, self._is_kept(ledger, None))
            ledger.finish()
        self._report(ledger, evicted, "age")
        return evicted

    def forget_names(self) -> None:
        """The database was replaced, or went back: numbers of namespaces mean nothing any more."""
        self._spaces.clear()

    def _touch(self, ledger: Ledger, keys: Sequence[RecordKey]) -> None:
        for key in keys:
            if (space := self._space(ledger, key.namespace)) is not None:
                ledger.touch(record_key(space, key))

    def _used_pages(self) -> int:
        with self._environment.reading() as txn:
            return self._environment.trees.used_pages(txn)

    def _put(self, batch: Batch, needed: int) -> PutOutcome | None:
        max_used = self.quota.limit_pages - needed
        while True:
            with self._environment.writing() as txn:
                ledger = self._ledger(txn)
                self._touch(ledger, batch.touched)
                evicted = evict_slice(ledger, max_used, self._is_kept(ledger, batch))
                fits = ledger.used_pages <= max_used
                wait = evicted > 0 and self.quota.is_large(needed)
                outcome = self._insert(ledger, batch) if fits and not wait else PutOutcome.FULL
                ledger.finish()
            batch.touched = ()
            self._report(ledger, evicted, "room")
            if fits and not wait:
                return outcome
            if not evicted:
                return PutOutcome.FULL
            if wait:
                self._advance()

    def _insert(self, ledger: Ledger, batch: Batch) -> PutOutcome | None:
        """Looks before it writes, so that an outcome other than STORED leaves the transaction unchanged."""
        seen: set[RecordKey] = set()
        absent: list[bool] = []
        for record in batch.records:
            if not self._has_parent(ledger, record, seen):
                return PutOutcome.ORPHAN
            absent.append(record.key not in seen and not self._is_present(ledger, record.key))
            if absent[-1] and record.key not in batch.encoded:
                return None
            seen.add(record.key)
        for record, is_absent in zip(batch.records, absent, strict=True):
            row = self._open_namespace(ledger, batch, record.key.namespace)
            if is_absent:
                ledger.insert(row.space, batch.encoded[record.key])
            else:
                ledger.touch(record_key(row.space, record.key))
        return PutOutcome.STORED

    def _open_namespace(self, ledger: Ledger, batch: Batch, namespace: Namespace) -> NamespaceRow:
        row, info = ledger.namespace(namespace), batch.infos.get(namespace)
        if row is not None and (info is None or (row.model, row.fingerprint) == (info.model, info.fingerprint)):
            return row
        return ledger.open_namespace(info or NamespaceInfo(namespace, "", ""))

    def _has_parent(self, ledger: Ledger, record: Record, seen: set[RecordKey]) -> bool:
        parent = BlockKey(record.key.namespace, record.parent)
        is_first = record.parent == BlockHash(record.key.namespace)
        return is_first or parent in seen or self._is_present(ledger, parent)

    def _is_present(self, ledger: Ledger, key: RecordKey) -> bool:
        space = self._space(ledger, key.namespace)
        return space is not None and ledger.row(record_key(space, key)) is not None

    def _is_kept(self, ledger: Ledger, batch: Batch | None) -> Callable[[bytes], bool]:
        keys: set[RecordKey] = set(self._kept())
        for record in batch.records if batch else ():
            keys |= {record.key, BlockKey(record.key.namespace, record.parent)}
        spaces = {namespace: self._space(ledger, namespace) for namespace in {key.namespace for key in keys}}
        names = {record_key(space, key) for key in keys if (space := spaces[key.namespace]) is not None}
        return names.__contains__

    def _evict_to(self, max_used: int, batch: Batch | None) -> int:
        total = 0
        while True:
            with self._environment.writing() as txn:
                ledger = self._ledger(txn)
                evicted = evict_slice(ledger, max_used, self._is_kept(ledger, batch))
                ledger.finish()
            total += evicted
            self._report(ledger, evicted, "room")
            if not evicted:
                self._advance()
                return total

    def _advance(self) -> None:
        """Pages freed by a transaction can be used two transactions later."""
        for _ in range(2):
            with self._environment.writing() as txn:
                self._ledger(txn).finish()

    def _in_slices(self, find: Callable[[Ledger], bytes | None]) -> int:
        removed, max_records = 0, _DELETE_RECORDS
        while True:
            try:
                with self._environment.writing() as txn:
                    ledger = self._ledger(txn)
                    count = 0
                    while count < max_records and ledger.freed_bytes < _DELETE_BYTES and (start := find(ledger)):
                        count += _remove_below(ledger, start, max_records - count)
                    ledger.finish()
            except lmdb.MapFullError:
                # A fragmented full map refuses large deletions and takes small ones.
                if max_records == 1:
                    raise
                max_records = 1
                continue
            self._report(ledger, 0, "")
            removed += count
            if not count:
                return removed

    def _report(self, ledger: Ledger, num_evicted: int, reason: str) -> None:
        """After a commit."""
        if ledger.gone:
            self.note_gone(ledger.gone)
        self._on_evicted(num_evicted, reason)

    def _start_of(self, ledger: Ledger, key: RecordKey) -> bytes | None:
        space = self._space(ledger, key.namespace)
        name = record_key(space, key) if space is not None else b""
        return name if name and ledger.row(name) is not None else None

    def _first_of(self, ledger: Ledger, namespace: Namespace) -> bytes | None:
        space = self._space(ledger, namespace)
        return ledger.first_dependant(space, BlockHash(namespace)) if space is not None else None

    def _space(self, ledger: Ledger, namespace: Namespace) -> int | None:
        row = ledger.namespace(namespace)
        return row.space if row is not None else None

    def _ledger(self, txn: "lmdb.Transaction[bytes]") -> Ledger:
        return Ledger(txn, self._environment, self._spaces)


def _remove_below(ledger: Ledger, start: bytes, max_records: int) -> int:
    """Remove a record and what follows it from the leaves on, as far as the slice allows."""
    removed, path = 0, [start]
    while path and removed < max_records and ledger.freed_bytes < _DELETE_BYTES:
        key = path[-1]
        dependant = ledger.first_dependant(space_of(key), BlockHash(key[5:])) if is_block(key) else None
        if dependant is not None:
            path.append(dependant)
            continue
        row = ledger.row(path.pop())
        if row is None:
            raise Damaged("a link names a record that is not there")
        ledger.remove_leaf(key, row)
        removed += 1
    return removed
