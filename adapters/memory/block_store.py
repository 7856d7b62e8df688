"""A block store in a dictionary: the reference for the contract, and `--store memory`.

One lock around everything. Payloads are copied out of wherever they were computed when they are put, so the store
keeps no device memory alive. A record costs its raw bytes plus four a token. Nothing outlives the process.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from threading import RLock

from application.ports.block_store import EraseReport, IntegrityReport, NamespaceUsage, Presence, PutOutcome, StoreUsage
from domain.ids import BlockHash, GroupIndex
from domain.payload import HostPayload, StatePayload
from domain.record import BlockKey, Namespace, NamespaceInfo, Record, RecordKey, SnapshotKey, check_ids
from domain.snapshot_index import SnapshotIndex
from domain.snapshot_place import SnapshotPlace

_NO_LIMIT_BYTES = 1 << 62
_MAX_ANNOUNCED = 1024


@dataclass(slots=True)
class _Entry:
    record: Record
    raw_bytes: int
    cost_bytes: int
    clock: int = 0
    dependants: set[RecordKey] = field(default_factory=set[RecordKey])


def _host(payload: StatePayload) -> HostPayload:
    return HostPayload(payload.specs, tuple(memoryview(bytes(buffer)) for buffer in payload.buffers()))


def _entry(record: Record) -> _Entry:
    groups = {index: _host(payload) for index, payload in record.groups.items()}
    raw_bytes = sum(payload.size_bytes for payload in groups.values())
    kept = Record(record.key, record.parent, record.position, record.token_ids, groups, record.provenance)
    return _Entry(kept, raw_bytes, raw_bytes + 4 * len(record.token_ids))


class MemoryBlockStore:
    """See the port for the contract. `quota_bytes` None means no limit."""

    def __init__(self, quota_bytes: int | None = None) -> None:
        self._quota_bytes = _NO_LIMIT_BYTES if quota_bytes is None else quota_bytes
        self._lock = RLock()
        self._infos: dict[Namespace, NamespaceInfo] = {}
        self._entries: dict[RecordKey, _Entry] = {}
        self._first_blocks: dict[Namespace, set[RecordKey]] = {}
        self._snapshots = SnapshotIndex()
        self._heap: list[tuple[int, RecordKey]] = []
        self._pins: dict[RecordKey, int] = {}
        self._clock = 0
        self._used_bytes = 0
        self._evicted = 0
        self._closed = False

    def open_namespace(self, info: NamespaceInfo) -> None:
        with self._lock:
            self._infos.pop(info.namespace, None)
            self._infos[info.namespace] = info
            if len(self._infos) > 2 * len(self._first_blocks) + _MAX_ANNOUNCED:
                # A tenant that came once leaves nothing behind.
                recent = list(self._infos)[-_MAX_ANNOUNCED // 2 :]
                kept = self._first_blocks.keys() | recent
                self._infos = {space: known for space, known in self._infos.items() if space in kept}

    def lookup(self, keys: Sequence[BlockKey]) -> Sequence[Presence]:
        with self._lock:
            return [Presence.HIT if not self._closed and key in self._entries else Presence.MISS for key in keys]

    def find_snapshots(self, namespace: Namespace, places: Sequence[SnapshotPlace]) -> Sequence[Sequence[SnapshotKey]]:
        check_ids(namespace)
        with self._lock:
            return [self._snapshots.find(namespace, place) for place in places]

    def snapshots(
        self, namespace: Namespace, blocks: Sequence[BlockHash], limit: int | None = None
    ) -> Sequence[Sequence[SnapshotKey]]:
        check_ids(namespace, *blocks)
        with self._lock:
            return [self._snapshots_of(namespace, block)[:limit] for block in blocks]

    def children(
        self, namespace: Namespace, parent: BlockHash, limit: int
    ) -> Sequence[tuple[BlockKey, tuple[int, ...]]]:
        check_ids(namespace, parent)
        with self._lock:
            keys = sorted(key for key in self._dependants(namespace, parent) if isinstance(key, BlockKey))
            return [] if self._closed else [(key, self._entries[key].record.token_ids) for key in keys[:limit]]

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        wanted = groups if groups is not None else [None] * len(keys)
        with self._lock:
            return [self._read(key, chosen) for key, chosen in zip(keys, wanted, strict=True)]

    def put(self, records: Sequence[Record]) -> PutOutcome:
        # A dict, because one batch may name a record twice.
        with self._lock:
            if self._closed:
                return PutOutcome.UNAVAILABLE
            fresh: dict[RecordKey, Record] = {}
            for record in records:
                if not self._has_parent(record, fresh):
                    return PutOutcome.ORPHAN
                if record.key not in self._entries:
                    fresh.setdefault(record.key, record)
            entries = [_entry(record) for record in fresh.values()]
            with self._kept([self._parent_key(record) for record in records] + [record.key for record in records]):
                if not self._make_room(sum(entry.cost_bytes for entry in entries)):
                    return PutOutcome.FULL
            for entry in entries:
                self._insert(entry)
            self.touch([record.key for record in records])
            return PutOutcome.STORED

    def touch(self, keys: Sequence[RecordKey]) -> None:
        with self._lock:
            for key in keys:
                if entry := self._entries.get(key):
                    self._clock += 1
                    entry.clock = self._clock
                    heappush(self._heap, (self._clock, key))

    def pin(self, keys: Sequence[RecordKey]) -> None:
        with self._lock:
            for key in keys:
                self._pins[key] = self._pins.get(key, 0) + 1

    def unpin(self, keys: Sequence[RecordKey]) -> None:
        with self._lock:
            for key in keys:
                if (count := self._pins.get(key, 0)) > 1:
                    self._pins[key] = count - 1
                else:
                    self._pins.pop(key, None)

    def delete(self, keys: Sequence[RecordKey]) -> int:
        with self._lock:
            return 0 if self._closed else sum(self._remove_subtree(key) for key in keys)

    def delete_namespace(self, namespace: Namespace) -> int:
        check_ids(namespace)
        with self._lock:
            if self._closed:
                return 0
            roots = list(self._dependants(namespace, BlockHash(namespace)))
            self._infos.pop(namespace, None)
            return sum(self._remove_subtree(key) for key in roots)

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> EraseReport:
        with self._lock:
            gone = [space for space in self.usage().namespaces if includes is None or includes(space.info)]
            num_records = sum(self.delete_namespace(space.info.namespace) for space in gone)
            problem = "the store is closed" if self._closed else ""
            return EraseReport(num_records, sum(space.stored_bytes for space in gone), problem)

    def usage(self) -> StoreUsage:
        with self._lock:
            totals: dict[Namespace, list[int]] = {}
            for key, entry in self._entries.items():
                total = totals.setdefault(key.namespace, [0, 0, 0, 0])
                total[0 if isinstance(key, BlockKey) else 1] += 1
                total[2] += entry.raw_bytes
                total[3] += entry.cost_bytes
            namespaces = tuple(
                NamespaceUsage(self._infos.get(namespace, NamespaceInfo(namespace, "", "")), *total)
                for namespace, total in sorted(totals.items())
            )
            return StoreUsage(self._quota_bytes, self._used_bytes, namespaces, self._evicted)

    def check_integrity(self, *, payloads: bool = False) -> IntegrityReport:
        with self._lock:
            problems: list[str] = []
            for key, entry in self._entries.items():
                if not self._has_parent(entry.record, {}):
                    problems.append(f"{key} has no parent")
                elif key not in self._dependants(key.namespace, entry.record.parent):
                    problems.append(f"{key} is not linked from its parent")
                problems.extend(f"{key} links to {child}" for child in entry.dependants if child not in self._entries)
            if (counted := sum(entry.cost_bytes for entry in self._entries.values())) != self._used_bytes:
                problems.append(f"{self._used_bytes} bytes accounted, {counted} counted")
            return IntegrityReport(len(self._entries), tuple(problems))

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._entries.clear()
            self._first_blocks.clear()
            self._snapshots.clear()
            self._heap.clear()
            self._used_bytes = 0

    def _dependants(self, namespace: Namespace, block: BlockHash) -> set[RecordKey]:
        if block == BlockHash(namespace):
            return self._first_blocks.get(namespace, set())
        entry = self._entries.get(BlockKey(namespace, block))
        return entry.dependants if entry else set()

    def _snapshots_of(self, namespace: Namespace, block: BlockHash) -> list[SnapshotKey]:
        return sorted(key for key in self._dependants(namespace, block) if isinstance(key, SnapshotKey))

    def _read(self, key: RecordKey, chosen: frozenset[GroupIndex] | None) -> Record | None:
        entry = self._entries.get(key)
        if entry is None or chosen is None:
            return entry.record if entry else None
        record = entry.record
        groups = {index: payload for index, payload in record.groups.items() if index in chosen}
        return Record(record.key, record.parent, record.position, record.token_ids, groups, record.provenance)

    @staticmethod
    def _parent_key(record: Record) -> BlockKey:
        return BlockKey(record.key.namespace, record.parent)

    def _has_parent(self, record: Record, fresh: dict[RecordKey, Record]) -> bool:
        parent = self._parent_key(record)
        return record.parent == BlockHash(record.key.namespace) or parent in self._entries or parent in fresh

    @contextmanager
    def _kept(self, keys: Sequence[RecordKey]) -> Generator[None]:
        self.pin(keys)
        try:
            yield
        finally:
            self.unpin(keys)

    def _make_room(self, needed_bytes: int) -> bool:
        if needed_bytes > self._quota_bytes:
            return False
        passed_over: list[tuple[int, RecordKey]] = []
        while self._used_bytes + needed_bytes > self._quota_bytes and self._heap:
            clock, key = heappop(self._heap)
            entry = self._entries.get(key)
            if entry is None or entry.clock != clock or entry.dependants:
                continue
            if key in self._pins:
                passed_over.append((clock, key))
                continue
            self._remove_leaf(key)
            self._evicted += 1
        for item in passed_over:
            heappush(self._heap, item)
        return self._used_bytes + needed_bytes <= self._quota_bytes

    def _insert(self, entry: _Entry) -> None:
        record = entry.record
        self._entries[record.key] = entry
        self._used_bytes += entry.cost_bytes
        if isinstance(record.key, SnapshotKey):
            self._snapshots.add(record.key)
        if record.parent == BlockHash(record.key.namespace):
            self._first_blocks.setdefault(record.key.namespace, set()).add(record.key)
        else:
            self._entries[self._parent_key(record)].dependants.add(record.key)

    def _remove_leaf(self, key: RecordKey) -> None:
        entry = self._entries.pop(key)
        self._used_bytes -= entry.cost_bytes
        if isinstance(key, SnapshotKey):
            self._snapshots.discard(key)
        self._dependants(key.namespace, entry.record.parent).discard(key)
        if not self._first_blocks.get(key.namespace, True):
            del self._first_blocks[key.namespace]
        parent = self._entries.get(self._parent_key(entry.record))
        if parent is not None and not parent.dependants:
            heappush(self._heap, (parent.clock, parent.record.key))

    def _remove_subtree(self, key: RecordKey) -> int:
        if key not in self._entries:
            return 0
        removed, path = 0, [key]
        while path:
            dependants = self._entries[path[-1]].dependants
            if dependants:
                path.append(next(iter(dependants)))
            else:
                self._remove_leaf(path.pop())
                removed += 1
        return removed


__all__ = ("MemoryBlockStore",)
