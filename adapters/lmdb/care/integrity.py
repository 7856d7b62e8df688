"""Recounting everything: what `check_integrity` does, from one snapshot and trusting no sum."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import lmdb

from adapters.lmdb.faults import Damaged
from adapters.lmdb.file.environment import Environment
from adapters.lmdb.format.rows import (
    PIECE_KEY_BYTES,
    QUARANTINED,
    NamespaceRow,
    Quarantined,
    Row,
    child_prefix,
    clock_key,
    described,
    is_block,
    parse_key,
    piece_key,
    record_key,
    snapshot_prefix,
    space_of,
)
from adapters.lmdb.index.ledger import charged_bytes
from adapters.lmdb.index.reading import CorruptRecord, verify
from application.ports.block_store import Advance, IntegrityReport
from domain.ids import BlockHash
from domain.prefix.record import BlockKey, Namespace

_MAX_PROBLEMS = 1000


@dataclass(slots=True)
class _Sums:
    num_blocks: int = 0
    num_snapshots: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0


@dataclass(slots=True)
class _Count:
    problems: list[str] = field(default_factory=list[str])
    num_records: int = 0
    num_leaves: int = 0
    num_blocks: int = 0
    num_pieces: int = 0
    overflow_pages: int = 0
    sums: dict[int, _Sums] = field(default_factory=dict[int, _Sums])
    ids: Counter[int] = field(default_factory=Counter[int])


class IntegrityCheck:
    """One run over a store. `quota_bytes` None: not known here. `advance`: told of each record what it is charged.
    `payloads`: False touches no page of theirs."""

    def __init__(self, environment: Environment, quota_bytes: int | None, advance: Advance, *, payloads: bool) -> None:
        self._environment = environment
        self._quota_bytes = quota_bytes
        self._advance = advance
        self._payloads = payloads
        self._count = _Count()
        self._names: dict[int, Namespace] = {}

    def run(self) -> IntegrityReport:
        count = self._count
        try:
            with self._environment.viewing() as txn:
                rows = self._read_namespaces(txn)
                for key, value in txn.cursor(self._environment.trees.rec):
                    self._examine(txn, bytes(key), bytes(value))
                self._note_quarantined(txn)
                self._compare(txn, rows)
        except (Damaged, lmdb.Error, OSError) as failure:
            count.problems.append(f"the database cannot be read: {failure}")
        return IntegrityReport(count.num_records, tuple(count.problems[:_MAX_PROBLEMS]))

    def _read_namespaces(self, txn: "lmdb.Transaction[memoryview]") -> dict[int, NamespaceRow]:
        rows: dict[int, NamespaceRow] = {}
        for key, value in txn.cursor(self._environment.trees.ns):
            row = NamespaceRow.unpack(bytes(key), bytes(value))
            rows[row.space] = row
            self._names[row.space] = Namespace(bytes(key))
        return rows

    def _note_quarantined(self, txn: "lmdb.Transaction[memoryview]") -> None:
        for key, value in _under(txn.cursor(self._environment.trees.sys), QUARANTINED):
            left = Quarantined.unpack(key, value)
            self._count.num_pieces += left.num_pieces
            self._count.overflow_pages += left.num_pages
            self._problem(left.name, "could not be read from the disk: `cairn cache compact` gives up its place")

    def _examine(self, txn: "lmdb.Transaction[memoryview]", key: bytes, value: bytes) -> None:
        self._count.num_records += 1
        try:
            row = Row.unpack(key, value)
            self._examine_row(txn, key, row)
            self._advance(row.charged_bytes)
        except (Damaged, CorruptRecord) as failure:
            self._problem(key, str(failure))

    def _examine_row(self, txn: "lmdb.Transaction[memoryview]", key: bytes, row: Row) -> None:
        trees, space, count = self._environment.trees, space_of(key), self._count
        namespace = self._names.get(space)
        if namespace is None:
            self._problem(key, "belongs to no namespace")
            return
        record = parse_key(namespace, key)
        if row.parent != BlockHash(namespace):
            parent = record_key(space, BlockKey(namespace, row.parent))
            if txn.get(parent, db=trees.rec) is None:
                self._problem(key, "has no parent")
        if (
            isinstance(record, BlockKey)
            and txn.get(child_prefix(space, row.parent) + record.hash, db=trees.kid) is None
        ):
            self._problem(key, "is not linked from its parent")
        named = txn.get(clock_key(row.clock), db=trees.lru)
        is_leaf = self._is_leaf(txn, key)
        if (named is not None and bytes(named) == key) != is_leaf:
            self._problem(key, "is a leaf and not in the order of use" if is_leaf else "is in the order of use")
        count.num_leaves += is_leaf
        count.num_blocks += is_block(key)
        count.ids[row.id] += 1
        sums = count.sums.setdefault(space, _Sums())
        sums.num_blocks += is_block(key)
        sums.num_snapshots += not is_block(key)
        sums.raw_bytes += row.raw_bytes
        sums.stored_bytes += row.charged_bytes
        if self._payloads:
            self._measure(txn, key, row)
            verify(self._environment, txn, record, row)

    def _measure(self, txn: "lmdb.Transaction[memoryview]", key: bytes, row: Row) -> None:
        geometry, sizes = self._environment.geometry, [-1] * (row.num_pieces + 1)
        for index in range(row.num_pieces + 1):
            value = txn.get(piece_key(row.id, index), db=self._environment.trees.dat)
            sizes[index] = value.nbytes if value is not None else -1
        if -1 in sizes or sizes[1:] != geometry.piece_sizes(row.stream_bytes):
            self._problem(key, f"has pieces of {sizes} bytes")
            return
        self._count.num_pieces += len(sizes)
        self._count.overflow_pages += sum(geometry.overflow_pages(PIECE_KEY_BYTES, size) for size in sizes)
        if row.charged_bytes != charged_bytes(geometry, key, sizes[0], sizes[1:]):
            self._problem(key, f"is charged {row.charged_bytes} bytes")

    def _is_leaf(self, txn: "lmdb.Transaction[memoryview]", key: bytes) -> bool:
        if not is_block(key):
            return True
        trees, space, block = self._environment.trees, space_of(key), BlockHash(key[5:])
        for tree, prefix in ((trees.kid, child_prefix(space, block)), (trees.rec, snapshot_prefix(space, block))):
            cursor = txn.cursor(tree)
            if cursor.set_range(prefix) and bytes(cursor.key()).startswith(prefix):
                return False
        return True

    def _compare(self, txn: "lmdb.Transaction[memoryview]", rows: dict[int, NamespaceRow]) -> None:
        trees, count = self._environment.trees, self._count
        for space, row in rows.items():
            counted = count.sums.get(space, _Sums())
            noted = _Sums(row.num_blocks, row.num_snapshots, row.raw_bytes, row.stored_bytes)
            if counted != noted:
                count.problems.append(f"namespace {space} has {noted} accounted and {counted} counted")
        found = {name: txn.stat(tree) for name, tree in (("kid", trees.kid), ("lru", trees.lru), ("dat", trees.dat))}
        expected = {"kid": count.num_blocks, "lru": count.num_leaves, "dat": count.num_pieces}
        for name, number in expected.items():
            if name == "dat" and not self._payloads:
                continue
            if found[name]["entries"] != number:
                count.problems.append(f"{name} has {found[name]['entries']} entries where {number} belong")
        if self._payloads and found["dat"]["overflow_pages"] != count.overflow_pages:
            count.problems.append(f"{found['dat']['overflow_pages']} pages in use where {count.overflow_pages} belong")
        count.problems.extend(f"id {number} is used {uses} times" for number, uses in count.ids.items() if uses > 1)
        # A file that could not be made smaller keeps its size, and a map as large as that.
        file_bytes, map_bytes = self._environment.info()
        if self._quota_bytes is not None and file_bytes > max(self._quota_bytes, map_bytes):
            count.problems.append(f"the file takes {file_bytes} bytes of a quota of {self._quota_bytes}")

    def _problem(self, key: bytes, text: str) -> None:
        self._count.problems.append(f"{described(key)} {text}")


def _under(cursor: "lmdb.Cursor[memoryview]", prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    more = cursor.set_range(prefix)
    while more and (key := bytes(cursor.key())).startswith(prefix):
        yield key, bytes(cursor.value())
        more = cursor.next()
