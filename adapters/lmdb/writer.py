"""Changes of a store, each in transactions of bounded work: batches, deletions, recency, eviction.

Room is made by evicting the least recently used leaves until the new records fit below the quota. The reserve between
the limit and the quota absorbs copy-on-write and pages that LMDB may not use again yet: those freed by this transaction
and the one before. Failures are not contained here: errors of LMDB and the volume abort the transaction and are raised.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

import lmdb

from adapters.lmdb.entries import MARK, described, pack_mark, unpack_mark
from adapters.lmdb.environment import Environment
from adapters.lmdb.payload import EncodedRecord, PageGeometry
from adapters.lmdb.transaction import MAX_RECORDS, WriteTransaction
from application.ports.block_store import NoteGone, PutOutcome
from application.ports.clock import Clock
from domain.ids import BlockHash
from domain.prefix.record import BlockKey, Namespace, NamespaceInfo, Record, RecordKey

MIN_QUOTA_BYTES = 1 << 20
# The file is mapped whole, and an address space has 47 bits.
MAX_QUOTA_BYTES = 1 << 46
_RESERVE_SHARE = 16
_MIN_RESERVE_PAGES = 64
# A path of every tree is copied per change, and splits add pages.
_COPIED_PAGES = 24
_COPIED_PAGES_PER_RECORD = 4

_TOUCHES = 4096
_ROOM_ROUNDS = 3
_MAX_HELD_TOUCHES = 1 << 16
_MAX_NAMESPACES = 1024

MARK_EVERY_S = 3600
_AGE_EVERY_S = 600.0

K = TypeVar("K")
V = TypeVar("V")


class RecordUses:
    """The records that this process is reading, and the changes that wait for the next write transaction: uses of
    records, and the names of namespaces, whose rows are written with their first records. Any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._read: Counter[RecordKey] = Counter()
        self._touched: dict[RecordKey, None] = {}
        self._infos: dict[Namespace, NamespaceInfo] = {}

    def announce(self, info: NamespaceInfo) -> None:
        """Notes a namespace's names; beyond a bound the oldest are forgotten. Every batch announces its namespace
        again, so a forgotten one costs a name in a report at most."""
        with self._lock:
            _renew(self._infos, info.namespace, info, _MAX_NAMESPACES)

    def announced(self, namespace: Namespace) -> NamespaceInfo | None:
        return self._infos.get(namespace)

    def touch(self, keys: Sequence[RecordKey]) -> None:
        """Notes uses, the latest last; beyond a bound the oldest are forgotten."""
        with self._lock:
            for key in keys:
                _renew(self._touched, key, None, _MAX_HELD_TOUCHES)

    def take_touched(self) -> list[RecordKey]:
        """Returns the uses noted since the last call."""
        with self._lock:
            touched, self._touched = list(self._touched), {}
        return touched

    @contextmanager
    def reading(self, keys: Sequence[RecordKey]) -> Generator[None]:
        """Keeps records from being evicted while the block runs."""
        with self._lock:
            self._read.update(keys)
        try:
            yield
        finally:
            with self._lock:
                self._read -= Counter(keys)

    def kept(self) -> Sequence[RecordKey]:
        """Returns the records that must not be evicted now."""
        with self._lock:
            return list(self._read)


class Writer:
    """The write side of a store. After each commit `on_evicted` is called with the number of evicted records and the
    reason (as in RecordsEvicted), and `note_gone` with the records that were removed for any reason."""

    def __init__(
        self, environment: Environment, quota_bytes: int, uses: RecordUses, on_evicted: Callable[[int, str], None]
    ) -> None:
        self._environment = environment
        self.quota_bytes = quota_bytes
        self._uses = uses
        self._on_evicted = on_evicted
        self.note_gone: NoteGone = lambda _: None

    @property
    def limit_pages(self) -> int:
        """The most pages in use when a put has ended."""
        return self.quota_bytes // self._environment.geometry.page_bytes - self._reserve_pages

    @property
    def _reserve_pages(self) -> int:
        return max(_MIN_RESERVE_PAGES, self.quota_bytes // self._environment.geometry.page_bytes // _RESERVE_SHARE)

    def put(self, records: Sequence[Record], encoded: Mapping[RecordKey, EncodedRecord]) -> PutOutcome:
        """Stores a batch. `encoded` has every record that is absent; the caller keeps other writers out.

        Raises MapFullError when even eviction and waiting did not help.
        """
        needed = _needed_pages(self._environment.geometry, encoded.values())
        if needed > self.limit_pages:
            return PutOutcome.FULL
        touched = self._uses.take_touched()
        for rounds in range(_ROOM_ROUNDS):
            try:
                return self._put(records, encoded, needed, touched)
            except lmdb.MapFullError:
                # Either a reader keeps free pages from being used, and evicting would not help; or they are too
                # scattered for a piece.
                if self._environment.has_lagging_reader():
                    raise
                self._evict_to(self._environment.used_pages() - (2 << rounds) * needed, records)
        return self._put(records, encoded, needed, touched)

    def shrink(self) -> None:
        """Evicts down to the limit."""
        self._evict_to(self.limit_pages, ())

    def touch(self) -> None:
        """Writes the uses that were noted."""
        touched = self._uses.take_touched()
        for start in range(0, len(touched), _TOUCHES):
            with self.transaction() as change:
                for key in touched[start : start + _TOUCHES]:
                    change.touch(key)

    def delete(self, key: RecordKey) -> int:
        """Removes a record with everything that follows it; returns the number of removed records."""

        def find(change: WriteTransaction) -> bytes | None:
            name = change.name(key)
            return name if change.row(name) is not None else None

        return self._remove_all(find)

    def delete_namespace(self, namespace: Namespace) -> int:
        """Removes all records of a namespace; returns their number."""

        def find(change: WriteTransaction) -> bytes | None:
            row = change.namespace(namespace)
            return change.first_after(row.space, BlockHash(namespace)) if row is not None else None

        return self._remove_all(find)

    def quarantine(self, record_id: int) -> str:
        """Removes a record that the disk cannot read, with everything that follows it, and leaves its pages alone.
        Returns its name for messages."""
        with self._environment.reading() as txn:
            name = WriteTransaction(txn, self._environment).name_of(record_id)
        if name is None:
            return "a record"
        self._remove_all(lambda change: change.first_dependant(name))
        with self.transaction() as change:
            if (row := change.row(name)) is not None:
                change.remove_leaf(name, row, is_readable=False)
        return described(name)

    @contextmanager
    def transaction(self, reason: str = "room") -> Generator[WriteTransaction]:
        """One transaction, committed on leaving. `reason`: why records are evicted in it."""
        with self._environment.writing() as txn:
            change = WriteTransaction(txn, self._environment)
            yield change
            change.finish()
        if change.gone:
            self.note_gone(change.gone)
        if change.num_evicted:
            self._on_evicted(change.num_evicted, reason)

    def kept(self, change: WriteTransaction, records: Sequence[Record] = ()) -> Collection[bytes]:
        """Returns the names of records that must not be evicted: those that are read, and a batch's with their
        parents."""
        keys: set[RecordKey] = set(self._uses.kept())
        for record in records:
            keys |= {record.key, BlockKey(record.key.namespace, record.parent)}
        return {name for key in keys if (name := change.name(key)) is not None}

    def _put(
        self,
        records: Sequence[Record],
        encoded: Mapping[RecordKey, EncodedRecord],
        needed: int,
        touched: list[RecordKey],
    ) -> PutOutcome:
        """Stores a batch, after transactions that evict for it. Empties `touched` as soon as it is written."""
        max_used = self.limit_pages - needed
        while True:
            with self.transaction() as change:
                for key in touched:
                    change.touch(key)
                change.evict(self.kept(change, records), lambda _: change.used_pages > max_used)
                fits = change.used_pages <= max_used
                # So many freed pages have to be waited for before they can be used again.
                waits = change.num_evicted > 0 and needed > self._reserve_pages // 4
                outcome = self._insert(change, records, encoded) if fits and not waits else PutOutcome.FULL
            touched.clear()
            if (fits and not waits) or not change.num_evicted:
                return outcome
            if waits:
                self._free_pages()

    def _insert(
        self, change: WriteTransaction, records: Sequence[Record], encoded: Mapping[RecordKey, EncodedRecord]
    ) -> PutOutcome:
        """Inserts a batch. It looks before it writes, so that an outcome other than STORED leaves the transaction
        unchanged."""
        seen: set[RecordKey] = set()
        for record in records:
            parent = BlockKey(record.key.namespace, record.parent)
            is_first = record.parent == BlockHash(record.key.namespace)
            if not is_first and parent not in seen and change.row(change.name(parent)) is None:
                return PutOutcome.ORPHAN
            seen.add(record.key)
        for record in records:
            if change.row(change.name(record.key)) is not None:
                change.touch(record.key)
                continue
            namespace = record.key.namespace
            row = change.open_namespace(namespace, self._uses.announced(namespace))
            change.insert(row.space, encoded[record.key])
        return PutOutcome.STORED

    def _evict_to(self, max_used: int, records: Sequence[Record]) -> None:
        num_evicted = 1
        while num_evicted:
            with self.transaction() as change:
                change.evict(self.kept(change, records), lambda _: change.used_pages > max_used)
            num_evicted = change.num_evicted
        self._free_pages()

    def _free_pages(self) -> None:
        """Commits two empty transactions: pages freed by a transaction can be used two transactions later."""
        for _ in range(2):
            with self.transaction():
                pass

    def _remove_all(self, find: Callable[[WriteTransaction], bytes | None]) -> int:
        removed, max_records = 0, MAX_RECORDS
        while True:
            try:
                with self.transaction() as change:
                    while len(change.gone) < max_records and not change.is_full and (name := find(change)):
                        change.remove_below(name, max_records)
            except lmdb.MapFullError:
                # A fragmented full map refuses large deletions and takes small ones.
                if max_records == 1:
                    raise
                max_records = 1
                continue
            removed += len(change.gone)
            if not change.gone:
                return removed


class AgeLimit:
    """Eviction of records that were not used for `max_age_s`.

    The store's clock counts uses. A mark in `sys` says where it stood at a time, once an hour at most: a record whose
    clock is not after a mark's was last used before that mark. So all leaves up to the newest mark that is older than
    the maximum age are expired, the oldest first; their parents follow, if they are as old. Before the first mark
    nothing is known, and nothing expires. Where the machine's clock was set back, all marks are, so that they keep
    their distances.
    """

    def __init__(self, writer: Writer, clock: Clock, max_age_s: int) -> None:
        self._writer = writer
        self._clock = clock
        self._max_age_s = max_age_s
        self._next_ns = 0

    @property
    def is_due(self) -> bool:
        return self._clock.now_ns() >= self._next_ns

    def step(self) -> None:
        """Makes a mark if it is time, and evicts some of what has expired, in one transaction. Uses must be written
        before. Raises as writing does, MapFullError where a fragmented map refuses it."""
        # Before, so that a failure is not repeated with every write.
        self._next_ns = self._clock.now_ns() + int(_AGE_EVERY_S * 1e9)
        with self._writer.transaction("age") as change:
            if (last_clock := self._expired(change)) is not None:
                change.evict(self._writer.kept(change), lambda clock: clock <= last_clock)
        if change.num_evicted:
            self._next_ns = 0  # there may be more: the next write continues

    def _expired(self, change: WriteTransaction) -> int | None:
        """Returns the clock up to which everything has expired; renews the marks."""
        now_s = self._clock.unix_ns() // 1_000_000_000
        marks = _marks(change)
        ahead_s = marks[-1][0] - now_s if marks else 0
        if ahead_s > MARK_EVERY_S:
            shifted = sorted({max(0, at_s - ahead_s): clock for at_s, clock in marks}.items())
            marks = _replace_marks(change, marks, shifted)
        if not marks or now_s >= marks[-1][0] + MARK_EVERY_S:
            _replace_marks(change, [], [(now_s, change.clock)])
        old = [mark for mark in marks if mark[0] <= now_s - self._max_age_s]
        _replace_marks(change, old[:-1], [])
        return old[-1][1] if old else None


def _replace_marks(
    change: WriteTransaction, old: Sequence[tuple[int, int]], new: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    for mark in old:
        change.txn.delete(pack_mark(*mark)[0], db=change.trees.sys)
    for mark in new:
        change.txn.put(*pack_mark(*mark), db=change.trees.sys)
    return new


def _marks(change: WriteTransaction) -> list[tuple[int, int]]:
    """Returns (Unix seconds, clock) of each mark, the oldest first. Raises Damaged."""
    found: list[tuple[int, int]] = []
    cursor = change.txn.cursor(change.trees.sys)
    more = cursor.set_range(MARK)
    while more and (key := cursor.key()).startswith(MARK):
        found.append(unpack_mark(key, cursor.value()))
        more = cursor.next()
    return found


def _needed_pages(geometry: PageGeometry, batch: Collection[EncodedRecord]) -> int:
    """Returns an upper bound on what a batch adds."""
    if not batch:
        return 0
    total = _COPIED_PAGES
    for encoded in batch:
        sizes = (len(encoded.head), *geometry.piece_sizes(encoded.stream_bytes))
        total += _COPIED_PAGES_PER_RECORD + sum(-(-size // geometry.page_bytes) for size in sizes)
    return total


def _renew(table: dict[K, V], key: K, value: V, max_entries: int) -> None:
    """Puts an entry last in a dictionary that loses its oldest ones."""
    table.pop(key, None)
    table[key] = value
    while len(table) > max_entries:
        del table[next(iter(table))]
