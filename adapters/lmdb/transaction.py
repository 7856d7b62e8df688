"""One write transaction: records are added and removed together with links, recency and accounting.

Every method leaves the trees consistent but for the sums, which `finish` writes. A record enters `lru` when nothing
follows it and leaves it when something does; a method that breaks a link looks at the parent.
"""

from collections.abc import Callable, Container

import lmdb

from adapters.lmdb.entries import (
    PIECE_KEY_BYTES,
    STATE_KEY,
    NamespaceEntry,
    Quarantined,
    RecordEntry,
    State,
    block_name,
    child_prefix,
    clock_key,
    is_block,
    linked,
    parse_key,
    piece_key,
    quarantine_key,
    record_key,
    snapshot_prefix,
    space_of,
)
from adapters.lmdb.environment import Environment
from adapters.lmdb.faults import Damaged
from adapters.lmdb.payload import EncodedRecord, cut
from domain.ids import BlockHash
from domain.prefix.record import BlockKey, Namespace, NamespaceInfo, RecordKey

MAX_RECORDS = 512
MAX_FREED_BYTES = 64 << 20
"""Records and bytes that one transaction removes: the free list of a larger one would not fit where LMDB puts it."""


class WriteTransaction:
    """One change of a store, for as long as its LMDB transaction. `gone`: the records that it removed; `num_evicted`:
    the number of evicted ones among them. Names are the keys of `rec`."""

    def __init__(self, txn: "lmdb.Transaction[bytes]", environment: Environment) -> None:
        self.txn = txn
        self.trees = environment.trees
        self.gone: list[RecordKey] = []
        self.num_evicted = 0
        self._geometry = environment.geometry
        self._notes = environment.notes
        self._rows: dict[Namespace, NamespaceEntry] = {}
        self._namespaces: dict[int, Namespace] = {}
        value = txn.get(STATE_KEY, db=self.trees.sys)
        self._state = State.unpack(value) if value is not None else State()
        self._kids = txn.cursor(self.trees.kid)
        self._records = txn.cursor(self.trees.rec)
        self._freed_bytes = 0

    @property
    def used_pages(self) -> int:
        return self.trees.used_pages(self.txn)

    @property
    def clock(self) -> int:
        """The clock of the latest use."""
        return self._state.clock

    @property
    def is_full(self) -> bool:
        """True when the transaction has removed as much as one may."""
        return len(self.gone) >= MAX_RECORDS or self._freed_bytes >= MAX_FREED_BYTES

    def namespace(self, namespace: Namespace) -> NamespaceEntry | None:
        row = self._rows.get(namespace)
        if row is None and (value := self.txn.get(namespace, db=self.trees.ns)) is not None:
            row = self._rows[namespace] = NamespaceEntry.unpack(namespace, value)
            self._namespaces[row.space] = namespace
        return row

    def open_namespace(self, namespace: Namespace, info: NamespaceInfo | None) -> NamespaceEntry:
        """Returns the row of a namespace, made where it is absent. `info`: its names, where they are known."""
        row = self.namespace(namespace)
        if row is None:
            row = self._rows[namespace] = NamespaceEntry(self._state.next_space)
            self._namespaces[row.space] = namespace
            self._state.next_space += 1
        if info is not None:
            row.model, row.fingerprint = info.model, info.fingerprint
        return row

    def name(self, key: RecordKey) -> bytes | None:
        """Returns the name of a record; None without its namespace."""
        row = self.namespace(key.namespace)
        return record_key(row.space, key) if row is not None else None

    def row(self, name: bytes | None) -> RecordEntry | None:
        value = self.txn.get(name, db=self.trees.rec) if name is not None else None
        return RecordEntry.unpack(name, value) if name is not None and value is not None else None

    def insert(self, space: int, encoded: EncodedRecord) -> None:
        """Adds a record that is absent and whose parent is present (or that is the first of its namespace)."""
        record = encoded.record
        name = record_key(space, record.key)
        row = self._write_payload(name, encoded)
        self.txn.put(name, row.pack(name), db=self.trees.rec)
        if isinstance(record.key, BlockKey):
            self.txn.put(child_prefix(space, record.parent) + record.key.hash, b"", db=self.trees.kid)
        self.txn.put(clock_key(row.clock), name, db=self.trees.lru)
        if parent := self._parent(name, row):
            self.txn.delete(clock_key(parent[1].clock), db=self.trees.lru)
        self._count(name, row, 1)

    def touch(self, key: RecordKey) -> None:
        """Notes a use; does nothing for an absent record."""
        name = self.name(key)
        row = self.row(name)
        if name is None or row is None:
            return
        used = row.used_at(self._tick())
        self.txn.put(name, used.pack(name), db=self.trees.rec)
        if self.txn.delete(clock_key(row.clock), db=self.trees.lru):
            self.txn.put(clock_key(used.clock), name, db=self.trees.lru)

    def evict(self, kept: Container[bytes], goes_on: Callable[[int], bool]) -> None:
        """Removes the least recently used leaves but `kept` while `goes_on`, given the clock of the next, or until the
        transaction is full."""
        clock = 0
        while not self.is_full:
            cursor = self.txn.cursor(self.trees.lru)
            if not cursor.set_range(clock_key(clock)):
                return
            clock, name = int.from_bytes(cursor.key(), "big"), cursor.value()
            if not goes_on(clock):
                return
            if name not in kept:
                row = self.row(name)
                if row is None or row.clock != clock:
                    raise Damaged("the order of use names an absent record")
                parent_clock = self.remove_leaf(name, row)
                self.num_evicted += 1
                # The parent may have become a leaf, and be older than where the search stands.
                clock = clock if parent_clock is None else min(clock, parent_clock - 1)
            clock += 1

    def remove_below(self, name: bytes, max_records: int) -> None:
        """Removes a record and what follows it from the leaves on, until the transaction has removed `max_records`."""
        path = [name]
        while path and len(self.gone) < max_records and not self.is_full:
            name = path[-1]
            dependant = self.first_dependant(name)
            if dependant is not None:
                path.append(dependant)
                continue
            row = self.row(path.pop())
            if row is None:
                raise Damaged("a link names an absent record")
            self.remove_leaf(name, row)

    def remove_leaf(self, name: bytes, row: RecordEntry, *, is_readable: bool = True) -> int | None:
        """Removes a leaf; returns the clock of its parent if that has become a leaf. Raises Damaged when the record is
        only partly there. `is_readable` False: its pages are left alone, because the disk cannot read them, and stay in
        use."""
        if self.first_dependant(name) is not None:
            raise Damaged("a record to remove is followed by others")
        space = space_of(name)
        found = [self.txn.delete(name, db=self.trees.rec), self.txn.delete(clock_key(row.clock), db=self.trees.lru)]
        if is_readable:
            with self._notes.of(row.id):
                pieces = [piece_key(row.id, piece) for piece in range(row.num_pieces + 1)]
                found += [self.txn.delete(piece, db=self.trees.dat) for piece in pieces]
        else:
            mark = quarantine_key(row.id)
            self.txn.put(mark, self._quarantined(name, row).pack(mark), db=self.trees.sys)
        if is_block(name):
            found.append(self.txn.delete(child_prefix(space, row.parent) + name[5:], db=self.trees.kid))
        if not all(found):
            raise Damaged("a record to remove is incomplete")
        self._count(name, row, -1)
        self.gone.append(parse_key(self._namespace_of(space), name))
        self._freed_bytes += row.charged_bytes
        parent = self._parent(name, row)
        if parent is None or self.first_dependant(parent[0]) is not None:
            return None
        self.txn.put(clock_key(parent[1].clock), parent[0], db=self.trees.lru)
        return parent[1].clock

    def name_of(self, record_id: int) -> bytes | None:
        """Returns the name of a record by its id. Scans every row."""
        return next((name for name, value in self._records if RecordEntry.unpack(name, value).id == record_id), None)

    def first_dependant(self, name: bytes) -> bytes | None:
        """Returns the name of some record that follows this one, or None."""
        return self.first_after(space_of(name), BlockHash(name[5:])) if is_block(name) else None

    def first_after(self, space: int, block: BlockHash) -> bytes | None:
        """Returns the name of some record that follows a block, or the root of its namespace, or None."""
        prefix = snapshot_prefix(space, block)
        if self._records.set_range(prefix) and self._records.key().startswith(prefix):
            return self._records.key()
        prefix = child_prefix(space, block)
        if self._kids.set_range(prefix) and self._kids.key().startswith(prefix):
            return block_name(space, linked(self._kids.key()))
        return None

    def finish(self) -> None:
        """Writes the sums; the last call before the commit. A namespace is removed with its last record."""
        for namespace, row in self._rows.items():
            if row.num_blocks + row.num_snapshots:
                self.txn.put(namespace, row.pack(namespace), db=self.trees.ns)
            else:
                self.txn.delete(namespace, db=self.trees.ns)
        self.txn.put(STATE_KEY, self._state.pack(), db=self.trees.sys)

    def _tick(self) -> int:
        self._state.clock += 1
        return self._state.clock

    def _parent(self, name: bytes, row: RecordEntry) -> tuple[bytes, RecordEntry] | None:
        """Returns name and row of the parent; None for the first records of a namespace. Raises Damaged when it is
        absent."""
        space = space_of(name)
        if row.parent == BlockHash(self._namespace_of(space)):
            return None
        parent_name = block_name(space, row.parent)
        parent = self.row(parent_name)
        if parent is None:
            raise Damaged("a record has lost its parent")
        return parent_name, parent

    def _namespace_of(self, space: int) -> Namespace:
        if space not in self._namespaces:
            for key, value in self.txn.cursor(self.trees.ns):
                self._namespaces[NamespaceEntry.unpack(key, value).space] = Namespace(key)
        if space not in self._namespaces:
            raise Damaged("a record belongs to no namespace")
        return self._namespaces[space]

    def _count(self, name: bytes, row: RecordEntry, sign: int) -> None:
        totals = self.namespace(self._namespace_of(space_of(name)))
        if totals is None:
            raise Damaged("a record belongs to no namespace")
        if is_block(name):
            totals.num_blocks += sign
        else:
            totals.num_snapshots += sign
        totals.raw_bytes += sign * row.raw_bytes
        totals.stored_bytes += sign * row.charged_bytes

    def _write_payload(self, name: bytes, encoded: EncodedRecord) -> RecordEntry:
        record_id, self._state.next_id = self._state.next_id, self._state.next_id + 1
        sizes = self._geometry.piece_sizes(encoded.stream_bytes)
        for index, piece in enumerate([encoded.head, *cut(encoded.stream, sizes)]):
            # Not `append`, which reads the last value: a sector of another record, which may be unreadable.
            if not self.txn.put(piece_key(record_id, index), piece, overwrite=False, db=self.trees.dat):
                raise Damaged("a new record's id is in use")
        return RecordEntry(
            id=record_id,
            clock=self._tick(),
            position=encoded.record.position,
            raw_bytes=encoded.record.raw_bytes,
            stream_bytes=encoded.stream_bytes,
            charged_bytes=self._geometry.charged_bytes(name, len(encoded.head), sizes),
            num_pieces=len(sizes),
            provenance=encoded.record.provenance,
            parent=encoded.record.parent,
        )

    def _quarantined(self, name: bytes, row: RecordEntry) -> Quarantined:
        geometry, sizes = self._geometry, self._geometry.piece_sizes(row.stream_bytes)
        # Whole pages, which only a long head has.
        head_bytes = row.charged_bytes - geometry.charged_bytes(name, 0, sizes)
        pages = [geometry.overflow_pages(PIECE_KEY_BYTES, size) for size in sizes]
        return Quarantined(name, row.num_pieces + 1, sum(pages) + head_bytes // geometry.page_bytes)
