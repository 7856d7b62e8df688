"""The recount behind `check_integrity`: from one snapshot, without trusting any sum."""

from collections import Counter, defaultdict

import lmdb

from adapters.lmdb.entries import (
    PIECE_KEY_BYTES,
    QUARANTINED,
    NamespaceEntry,
    Quarantined,
    RecordEntry,
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
from adapters.lmdb.environment import Environment
from adapters.lmdb.faults import CorruptRecord, Damaged
from adapters.lmdb.reading import under, verify
from application.ports.block_store import Advance, IntegrityReport
from domain.ids import BlockHash
from domain.prefix.record import BlockKey, Namespace

_MAX_PROBLEMS = 1000
_UNREADABLE = "could not be read from the disk: `cairn cache compact` gives up its place"


class IntegrityCheck:
    """One run over a store. `quota_bytes` None: not known here. `advance` is called with each record's charge.
    `payloads`: False touches no page of theirs."""

    def __init__(self, environment: Environment, quota_bytes: int | None, advance: Advance, *, payloads: bool) -> None:
        self._environment = environment
        self._quota_bytes = quota_bytes
        self._advance = advance
        self._payloads = payloads
        self._problems: list[str] = []
        self._spaces: dict[int, Namespace] = {}
        self._sums: defaultdict[int, NamespaceEntry] = defaultdict(lambda: NamespaceEntry(0))
        self._ids: Counter[int] = Counter()
        self._entries: Counter[str] = Counter()
        self._overflow_pages = 0

    def run(self) -> IntegrityReport:
        trees = self._environment.trees
        try:
            with self._environment.viewing() as txn:
                stored = [NamespaceEntry.unpack(bytes(key), bytes(value)) for key, value in txn.cursor(trees.ns)]
                names = txn.cursor(trees.ns).iternext(values=False)
                self._spaces = {row.space: Namespace(bytes(name)) for row, name in zip(stored, names, strict=True)}
                for name, value in txn.cursor(trees.rec):
                    self._examine(txn, bytes(name), bytes(value))
                for key in under(txn, trees.sys, QUARANTINED):
                    left = Quarantined.unpack(key, bytes(txn.get(key, b"", db=trees.sys)))
                    self._entries["dat"] += left.num_pieces
                    self._overflow_pages += left.num_pages
                    self._problem(left.name, _UNREADABLE)
                self._compare(txn, stored)
        except (Damaged, lmdb.Error, OSError) as failure:
            self._problems.append(f"the database cannot be read: {failure}")
        return IntegrityReport(self._entries["rec"], tuple(self._problems[:_MAX_PROBLEMS]))

    def _examine(self, txn: "lmdb.Transaction[memoryview]", name: bytes, value: bytes) -> None:
        self._entries["rec"] += 1
        try:
            row, namespace = RecordEntry.unpack(name, value), self._spaces.get(space_of(name))
            if namespace is None:
                self._problem(name, "belongs to no namespace")
            else:
                self._examine_links(txn, name, row, namespace)
                if self._payloads:
                    self._measure(txn, name, row)
                    verify(self._environment, txn, parse_key(namespace, name), row)
            self._advance(row.charged_bytes)
        except (Damaged, CorruptRecord) as failure:
            self._problem(name, str(failure))

    def _examine_links(
        self, txn: "lmdb.Transaction[memoryview]", name: bytes, row: RecordEntry, namespace: Namespace
    ) -> None:
        trees, space, block = self._environment.trees, space_of(name), is_block(name)
        parent = record_key(space, BlockKey(namespace, row.parent))
        if row.parent != BlockHash(namespace) and txn.get(parent, db=trees.rec) is None:
            self._problem(name, "has no parent")
        if block and txn.get(child_prefix(space, row.parent) + name[5:], db=trees.kid) is None:
            self._problem(name, "is not linked from its parent")
        used = txn.get(clock_key(row.clock), db=trees.lru)
        is_leaf = not block or not self._is_followed(txn, space, BlockHash(name[5:]))
        if (used is not None and bytes(used) == name) != is_leaf:
            self._problem(name, "is a leaf and not in the order of use" if is_leaf else "is in the order of use")
        self._ids[row.id] += 1
        self._entries["lru"] += is_leaf
        self._entries["kid"] += block
        sums = self._sums[space]
        sums.num_blocks += block
        sums.num_snapshots += not block
        sums.raw_bytes += row.raw_bytes
        sums.stored_bytes += row.charged_bytes

    def _measure(self, txn: "lmdb.Transaction[memoryview]", name: bytes, row: RecordEntry) -> None:
        geometry, dat = self._environment.geometry, self._environment.trees.dat
        values = [txn.get(piece_key(row.id, piece), db=dat) for piece in range(row.num_pieces + 1)]
        sizes = [value.nbytes if value is not None else -1 for value in values]
        if -1 in sizes or sizes[1:] != geometry.piece_sizes(row.stream_bytes):
            self._problem(name, f"has pieces of {sizes} bytes")
            return
        self._entries["dat"] += len(sizes)
        self._overflow_pages += sum(geometry.overflow_pages(PIECE_KEY_BYTES, size) for size in sizes)
        if row.charged_bytes != geometry.charged_bytes(name, sizes[0], sizes[1:]):
            self._problem(name, f"is charged {row.charged_bytes} bytes")

    def _is_followed(self, txn: "lmdb.Transaction[memoryview]", space: int, block: BlockHash) -> bool:
        trees = self._environment.trees
        places = ((trees.kid, child_prefix(space, block)), (trees.rec, snapshot_prefix(space, block)))
        return any(True for tree, prefix in places for _ in under(txn, tree, prefix))

    def _compare(self, txn: "lmdb.Transaction[memoryview]", stored: list[NamespaceEntry]) -> None:
        for row in stored:
            counted, accounted = _totals(self._sums[row.space]), _totals(row)
            if counted != accounted:
                self._problems.append(f"namespace {row.space} has {accounted} accounted and {counted} counted")
        trees = self._environment.trees
        for name, tree in (("kid", trees.kid), ("lru", trees.lru), *([("dat", trees.dat)] if self._payloads else [])):
            if (found := txn.stat(tree)["entries"]) != self._entries[name]:
                self._problems.append(f"{name} has {found} entries where {self._entries[name]} belong")
        found = txn.stat(trees.dat)["overflow_pages"]
        if self._payloads and found != self._overflow_pages:
            self._problems.append(f"{found} pages in use where {self._overflow_pages} belong")
        self._problems.extend(f"id {number} is used {uses} times" for number, uses in self._ids.items() if uses > 1)
        # A file that could not be made smaller keeps its size, and a map as large as that.
        file_bytes, map_bytes = self._environment.info()
        if self._quota_bytes is not None and file_bytes > max(self._quota_bytes, map_bytes):
            self._problems.append(f"the file takes {file_bytes} bytes of a quota of {self._quota_bytes}")

    def _problem(self, name: bytes, text: str) -> None:
        self._problems.append(f"{described(name)} {text}")


def _totals(row: NamespaceEntry) -> dict[str, int]:
    return {
        "blocks": row.num_blocks,
        "snapshots": row.num_snapshots,
        "raw bytes": row.raw_bytes,
        "stored bytes": row.stored_bytes,
    }
