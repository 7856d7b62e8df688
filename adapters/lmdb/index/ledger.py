"""One write transaction: records come and go together with links, recency and accounting.

Every method leaves the trees consistent but for the sums, which `finish` writes. A record enters `lru` when nothing
follows it and leaves it when something does; whoever breaks a link looks at the parent.
"""

from collections.abc import Sequence

import lmdb

from adapters.lmdb.faults import Damaged
from adapters.lmdb.file.environment import Environment
from adapters.lmdb.format.pages import PageGeometry
from adapters.lmdb.format.payload import EncodedRecord, cut
from adapters.lmdb.format.rows import (
    PIECE_KEY_BYTES,
    ROW_BYTES,
    STATE_KEY,
    NamespaceRow,
    Quarantined,
    Row,
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
from domain.ids import BlockHash
from domain.prefix.record import BlockKey, Namespace, NamespaceInfo, RecordKey


class Ledger:
    """Lives as long as its transaction. `spaces`: numbers of namespaces, remembered between transactions. `gone`: the
    records that it removed."""

    def __init__(self, txn: "lmdb.Transaction[bytes]", environment: Environment, spaces: dict[int, Namespace]) -> None:
        self._txn = txn
        self._trees = trees = environment.trees
        self._geometry = environment.geometry
        self._notes = environment.notes
        self._spaces = spaces
        self._rows: dict[Namespace, NamespaceRow] = {}
        value = txn.get(STATE_KEY, db=trees.sys)
        self._state = State.unpack(value) if value is not None else State()
        self._kids = txn.cursor(trees.kid)
        self._records = txn.cursor(trees.rec)
        self.freed_bytes = 0
        self.gone: list[RecordKey] = []

    @property
    def used_pages(self) -> int:
        return self._trees.used_pages(self._txn)

    @property
    def clock(self) -> int:
        """Of the latest use."""
        return self._state.clock

    def namespace(self, namespace: Namespace) -> NamespaceRow | None:
        row = self._rows.get(namespace)
        if row is None and (value := self._txn.get(namespace, db=self._trees.ns)) is not None:
            row = self._rows[namespace] = NamespaceRow.unpack(namespace, value)
            self._spaces[row.space] = namespace
        return row

    def open_namespace(self, info: NamespaceInfo) -> NamespaceRow:
        row = self.namespace(info.namespace)
        if row is None:
            row = self._rows[info.namespace] = NamespaceRow(self._state.next_space)
            self._spaces[row.space] = info.namespace
            self._state.next_space += 1
        row.model, row.fingerprint = info.model, info.fingerprint
        return row

    def row(self, key: bytes) -> Row | None:
        value = self._txn.get(key, db=self._trees.rec)
        return Row.unpack(key, value) if value is not None else None

    def insert(self, space: int, encoded: EncodedRecord) -> None:
        """The record is absent and its parent present (or it is the first of its namespace)."""
        record = encoded.record
        key = record_key(space, record.key)
        row = self._write_payload(key, encoded)
        self._txn.put(key, row.pack(key), db=self._trees.rec)
        if isinstance(record.key, BlockKey):
            self._txn.put(child_prefix(space, record.parent) + record.key.hash, b"", db=self._trees.kid)
        self._txn.put(clock_key(row.clock), key, db=self._trees.lru)
        if parent := self._parent(key, row):
            self._txn.delete(clock_key(parent[1].clock), db=self._trees.lru)
        self._count(key, row, 1)

    def touch(self, key: bytes) -> None:
        if (row := self.row(key)) is None:
            return
        used = row.used_at(self._tick())
        self._txn.put(key, used.pack(key), db=self._trees.rec)
        if self._txn.delete(clock_key(row.clock), db=self._trees.lru):
            self._txn.put(clock_key(used.clock), key, db=self._trees.lru)

    def oldest_leaf(self, clock: int) -> tuple[int, bytes] | None:
        """The least recently used leaf whose clock is at least `clock`."""
        cursor = self._txn.cursor(self._trees.lru)
        if not cursor.set_range(clock_key(clock)):
            return None
        return int.from_bytes(cursor.key(), "big"), cursor.value()

    def remove_leaf(self, key: bytes, row: Row, *, is_readable: bool = True) -> int | None:
        """The clock of the parent when it has become a leaf. Raises Damaged when the record is only partly there.
        `is_readable` False: its pages are left alone, because the disk cannot read them, and stay in use."""
        if not self.is_leaf(key):
            raise Damaged("a record to remove is followed by others")
        space = space_of(key)
        found = [
            self._txn.delete(key, db=self._trees.rec),
            self._txn.delete(clock_key(row.clock), db=self._trees.lru),
        ]
        if is_readable:
            with self._notes.of(row.id):
                pieces = [piece_key(row.id, piece) for piece in range(row.num_pieces + 1)]
                found += [self._txn.delete(piece, db=self._trees.dat) for piece in pieces]
        else:
            mark = quarantine_key(row.id)
            self._txn.put(mark, self._quarantined(key, row).pack(mark), db=self._trees.sys)
        if is_block(key):
            found.append(self._txn.delete(child_prefix(space, row.parent) + key[5:], db=self._trees.kid))
        if not all(found):
            raise Damaged("a record to remove is only partly there")
        self._count(key, row, -1)
        self.gone.append(parse_key(self._namespace_of(space), key))
        self.freed_bytes += row.charged_bytes
        parent = self._parent(key, row)
        if parent is None or not self.is_leaf(parent[0]):
            return None
        self._txn.put(clock_key(parent[1].clock), parent[0], db=self._trees.lru)
        return parent[1].clock

    def name_of(self, record_id: int) -> bytes | None:
        """The key of a record. Costs a look at every row."""
        return next((key for key, value in self._records if Row.unpack(key, value).id == record_id), None)

    def _quarantined(self, key: bytes, row: Row) -> Quarantined:
        geometry, sizes = self._geometry, self._geometry.piece_sizes(row.stream_bytes)
        # Whole pages, which only a long head has.
        head_bytes = row.charged_bytes - charged_bytes(geometry, key, 0, sizes)
        pages = [geometry.overflow_pages(PIECE_KEY_BYTES, size) for size in sizes]
        return Quarantined(key, row.num_pieces + 1, sum(pages) + head_bytes // geometry.page_bytes)

    def is_leaf(self, key: bytes) -> bool:
        return not is_block(key) or self.first_dependant(space_of(key), BlockHash(key[5:])) is None

    def first_dependant(self, space: int, block: BlockHash) -> bytes | None:
        """The key of some record that follows `block` (or on the namespace itself), or None."""
        prefix = snapshot_prefix(space, block)
        if self._records.set_range(prefix) and self._records.key().startswith(prefix):
            return self._records.key()
        prefix = child_prefix(space, block)
        if self._kids.set_range(prefix) and self._kids.key().startswith(prefix):
            return block_name(space, linked(self._kids.key()))
        return None

    def finish(self) -> None:
        """Write the sums; the last thing before the commit. A namespace goes with its last record."""
        for namespace, row in self._rows.items():
            if row.is_empty:
                self._spaces.pop(row.space, None)
                self._txn.delete(namespace, db=self._trees.ns)
            else:
                self._txn.put(namespace, row.pack(namespace), db=self._trees.ns)
        self._txn.put(STATE_KEY, self._state.pack(), db=self._trees.sys)

    def _tick(self) -> int:
        self._state.clock += 1
        return self._state.clock

    def _parent(self, key: bytes, row: Row) -> tuple[bytes, Row] | None:
        """Key and row of the parent; None for the first records of a namespace. Raises Damaged when it is absent."""
        space = space_of(key)
        if row.parent == BlockHash(self._namespace_of(space)):
            return None
        parent_key = block_name(space, row.parent)
        parent = self.row(parent_key)
        if parent is None:
            raise Damaged("a record has lost its parent")
        return parent_key, parent

    def _namespace_of(self, space: int) -> Namespace:
        if space not in self._spaces:
            for key, value in self._txn.cursor(self._trees.ns):
                self._spaces[NamespaceRow.unpack(key, value).space] = Namespace(key)
        if space not in self._spaces:
            raise Damaged("a record belongs to no namespace")
        return self._spaces[space]

    def _count(self, key: bytes, row: Row, sign: int) -> None:
        totals = self.namespace(self._namespace_of(space_of(key)))
        if totals is None:
            raise Damaged("a record belongs to no namespace")
        if is_block(key):
            totals.num_blocks += sign
        else:
            totals.num_snapshots += sign
        totals.raw_bytes += sign * row.raw_bytes
        totals.stored_bytes += sign * row.charged_bytes

    def _write_payload(self, key: bytes, encoded: EncodedRecord) -> Row:
        record_id, self._state.next_id = self._state.next_id, self._state.next_id + 1
        sizes = self._geometry.piece_sizes(encoded.stream_bytes)
        self._put_piece(record_id, 0, encoded.head)
        for index, piece in enumerate(cut(encoded.stream, sizes), start=1):
            self._put_piece(record_id, index, piece)
        return Row(
            id=record_id,
            clock=self._tick(),
            position=encoded.record.position,
            raw_bytes=encoded.raw_bytes,
            stream_bytes=encoded.stream_bytes,
            charged_bytes=charged_bytes(self._geometry, key, len(encoded.head), sizes),
            num_pieces=len(sizes),
            provenance=encoded.record.provenance,
            parent=encoded.record.parent,
        )

    def _put_piece(self, record_id: int, piece: int, value: bytes | memoryview) -> None:
        self._txn.put(piece_key(record_id, piece), value, append=True, db=self._trees.dat)


def charged_bytes(geometry: PageGeometry, key: bytes, head_bytes: int, piece_sizes: Sequence[int]) -> int:
    """What a record counts for: its pieces, its row, and its link where it is a block."""
    payload = sum(geometry.cost_bytes(PIECE_KEY_BYTES, size) for size in (head_bytes, *piece_sizes))
    link = geometry.cost_bytes(68, 0) if is_block(key) else 0
    return payload + geometry.cost_bytes(len(key), ROW_BYTES) + link
