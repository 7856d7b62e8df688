"""The hot tier: records in RAM in front of the store, within a byte budget.

Invariants (checked by `check_integrity`)
* A record's parent is the namespace itself or in the tier: a chain has no hole.
* `used_bytes` is the exact sum over the records and never exceeds the budget, except by what is pinned while the
  budget shrinks.
* Least recently used leaves go first; a record that is pinned or has dependants here stays.

Records are references to immutable payloads. Evicting one whose payload somebody still holds would free nothing, so
whoever holds payloads keeps them pinned: `acquire` pins, `release` unpins, counted. Any thread.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, nlargest
from itertools import islice
from threading import Lock

from application.ports.cache_stats import HotUsage
from domain.ids import BlockHash, GroupIndex
from domain.record import BlockKey, Namespace, Record, RecordKey, SnapshotKey
from domain.snapshot_index import SnapshotIndex
from domain.snapshot_place import SnapshotPlace

RECORD_OVERHEAD_BYTES = 1024
"""What a record costs besides its payload: objects, index entries."""

SCANNED_PER_FOLLOWER = 32
"""Records looked at for each follower asked for: where thousands hang on one block, the latest are not searched for."""

GroupSet = frozenset[GroupIndex]


@dataclass(slots=True)
class _Entry:
    record: Record
    size_bytes: int
    clock: int = 0
    pins: int = 0
    dependants: set[RecordKey] = field(default_factory=set[RecordKey])

    @property
    def is_evictable(self) -> bool:
        return not self.pins and not self.dependants


def record_bytes(record: Record) -> int:
    """What a record counts against the budget."""
    payloads = sum(payload.size_bytes for payload in record.groups.values())
    return payloads + 4 * len(record.token_ids) + RECORD_OVERHEAD_BYTES


class HotTier:
    """See the module docstring."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._lock = Lock()
        self._entries: dict[RecordKey, _Entry] = {}
        self._roots: dict[Namespace, set[RecordKey]] = {}
        self._snapshots = SnapshotIndex()
        self._heap: list[tuple[int, RecordKey]] = []
        self._used_bytes = 0
        self._num_blocks = 0
        self._evicted = 0
        self._clock = 0
        # Pins of records that were forgotten while somebody held them: their releases are still to come.
        self._forgotten: Counter[RecordKey] = Counter()

    @property
    def budget_bytes(self) -> int:
        return self._budget_bytes

    def put(self, records: Sequence[Record]) -> int:
        """Take records in order; returns how many are in the tier afterwards.

        Refused: one whose parent is not here, and one for which no room can be made. A record that is here already
        gains the groups it lacked.
        """
        with self._lock:
            return sum(self._put(record) for record in records)

    def held(self, keys: Sequence[RecordKey]) -> list[GroupSet | None]:
        """Which state groups of each record are here; None for a record that is not. Does not count as use."""
        with self._lock:
            entries = [self._entries.get(key) for key in keys]
            return [frozenset(entry.record.groups) if entry else None for entry in entries]

    def acquire(self, keys: Sequence[RecordKey], groups: Sequence[GroupSet | None]) -> list[Record | None]:
        """Pin and return the records that are here with all of their `groups` (None: any); None for the others.

        Counts as use. Each record returned must be released once.
        """
        found: list[Record | None] = []
        with self._lock:
            for key, wanted in zip(keys, groups, strict=True):
                entry = self._entries.get(key)
                if entry is None or not (wanted or frozenset()) <= entry.record.groups.keys():
                    found.append(None)
                    continue
                entry.pins += 1
                self._touch(key, entry)
                found.append(entry.record)
        return found

    def release(self, keys: Sequence[RecordKey]) -> None:
        """Undo one `acquire` of each key."""
        with self._lock:
            for key in keys:
                if self._forgotten[key]:
                    self._forgotten[key] -= 1
                    continue
                entry = self._entries[key]
                entry.pins -= 1
                if entry.pins < 0:
                    raise RuntimeError(f"{key} was released more often than acquired")
                self._note_leaf(key, entry)
            self._forgotten = +self._forgotten
            self._make_room(0)

    def forget(self, spared: Collection[Namespace] = ()) -> int:
        """Drop everything but these namespaces, pinned or not; returns how many records went. Who holds a payload goes
        on with it and releases it as ever."""
        with self._lock:
            gone = {key: entry for key, entry in self._entries.items() if key.namespace not in spared}
            for key, entry in gone.items():
                del self._entries[key]
                self._used_bytes -= entry.size_bytes
                self._num_blocks -= isinstance(key, BlockKey)
                self._forgotten[key] += entry.pins
                if isinstance(key, SnapshotKey):
                    self._snapshots.discard(key)
            self._roots = {namespace: keys for namespace, keys in self._roots.items() if namespace in spared}
            self._heap = [item for item in self._heap if item[1] in self._entries]
            heapify(self._heap)
            self._forgotten = +self._forgotten
            return len(gone)

    def find_snapshots(self, namespace: Namespace, places: Sequence[SnapshotPlace]) -> list[list[SnapshotKey]]:
        """The snapshots of one prompt at each place, ascending by `num_partial`, however many others hang there."""
        with self._lock:
            return [self._snapshots.find(namespace, place) for place in places]

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> list[tuple[int, ...]]:
        """Token ids of up to `limit` records that hang on `parent`, lately used ones first; for explaining."""
        with self._lock:
            keys = islice(self._dependants(namespace, parent), limit * SCANNED_PER_FOLLOWER)
            latest = nlargest(limit, keys, key=lambda key: self._entries[key].clock)
            return [self._entries[key].record.token_ids for key in latest]

    def remove(self, keys: Sequence[RecordKey]) -> int:
        """Drop, in this order, what is a leaf by then and not pinned; others stay. Returns how many went."""
        num_gone = 0
        with self._lock:
            for key in keys:
                entry = self._entries.get(key)
                if entry is not None and entry.is_evictable:
                    self._drop(key)
                    num_gone += 1
        return num_gone

    def resize(self, budget_bytes: int) -> int:
        """Change the budget, evicting what no longer fits; returns how many bytes that freed."""
        with self._lock:
            before = self._used_bytes
            self._budget_bytes = budget_bytes
            self._make_room(0)
            return before - self._used_bytes

    def usage(self) -> HotUsage:
        with self._lock:
            pinned = sum(1 for entry in self._entries.values() if entry.pins)
            num_snapshots = len(self._entries) - self._num_blocks
            return HotUsage(
                self._budget_bytes, self._used_bytes, self._num_blocks, num_snapshots, pinned, self._evicted
            )

    def check_integrity(self) -> list[str]:
        """Recount everything; one line for each problem, empty when sound."""
        with self._lock:
            problems: list[str] = []
            for key, entry in self._entries.items():
                if key not in self._dependants(key.namespace, entry.record.parent):
                    problems.append(f"{key} is not linked from its parent")
                if not self._has_parent(entry.record):
                    problems.append(f"{key} has no parent here")
                if entry.size_bytes != record_bytes(entry.record):
                    problems.append(f"{key} counts {entry.size_bytes} bytes, has {record_bytes(entry.record)}")
                problems += [f"{key} links to {child}" for child in entry.dependants if child not in self._entries]
            counted = sum(entry.size_bytes for entry in self._entries.values())
            if counted != self._used_bytes:
                problems.append(f"{self._used_bytes} bytes accounted, {counted} counted")
            snapshots = [key for key in self._entries if isinstance(key, SnapshotKey)]
            problems += [f"{key} is not found by its prompt" for key in snapshots if key not in self._snapshots]
            if len(snapshots) != len(self._snapshots):
                problems.append(f"{len(self._snapshots)} snapshots to be found, {len(snapshots)} there")
            blocks = sum(isinstance(key, BlockKey) for key in self._entries)
            if blocks != self._num_blocks:
                problems.append(f"{self._num_blocks} blocks accounted, {blocks} counted")
            evictable = any(entry.is_evictable for entry in self._entries.values())
            if self._used_bytes > self._budget_bytes and evictable:
                problems.append(f"{self._used_bytes} bytes used of {self._budget_bytes}, and some could be evicted")
            listed = set(self._heap)
            problems += [
                f"{key} is a leaf that eviction cannot find"
                for key, entry in self._entries.items()
                if entry.is_evictable and (entry.clock, key) not in listed
            ]
            return problems

    def _put(self, record: Record) -> bool:
        key = record.key
        entry = self._entries.get(key)
        if entry is not None:
            return self._widen(key, entry, record)
        if not self._has_parent(record):
            return False
        size_bytes = record_bytes(record)
        if not self._make_room(size_bytes, record):
            return False
        entry = _Entry(record, size_bytes)
        self._entries[key] = entry
        self._used_bytes += size_bytes
        self._num_blocks += isinstance(key, BlockKey)
        self._siblings(record).add(key)
        if isinstance(key, SnapshotKey):
            self._snapshots.add(key)
        self._touch(key, entry)
        return True

    def _widen(self, key: RecordKey, entry: _Entry, record: Record) -> bool:
        """Add the groups that a record read in part was missing."""
        missing = {index: payload for index, payload in record.groups.items() if index not in entry.record.groups}
        if missing:
            whole = replace(entry.record, groups={**entry.record.groups, **missing})
            entry.pins += 1
            has_room = self._make_room(record_bytes(whole) - entry.size_bytes)
            entry.pins -= 1
            if has_room:
                self._used_bytes += record_bytes(whole) - entry.size_bytes
                entry.record, entry.size_bytes = whole, record_bytes(whole)
        self._touch(key, entry)
        return True

    def _make_room(self, needed_bytes: int, newcomer: Record | None = None) -> bool:
        """Evict leaves, least recently used first, until `needed_bytes` fit. The newcomer's parent stays."""
        if needed_bytes > self._budget_bytes:
            return False
        spared: list[tuple[int, RecordKey]] = []
        parent = BlockKey(newcomer.key.namespace, newcomer.parent) if newcomer else None
        while self._used_bytes + needed_bytes > self._budget_bytes and self._heap:
            clock, key = heappop(self._heap)
            entry = self._entries.get(key)
            if entry is None or entry.clock != clock or not entry.is_evictable:
                continue
            if key == parent:
                spared.append((clock, key))
                continue
            self._drop(key)
            self._evicted += 1
        for item in spared:
            heappush(self._heap, item)
        return self._used_bytes + needed_bytes <= self._budget_bytes

    def _drop(self, key: RecordKey) -> None:
        entry = self._entries.pop(key)
        self._used_bytes -= entry.size_bytes
        self._num_blocks -= isinstance(key, BlockKey)
        siblings = self._siblings(entry.record)
        siblings.discard(key)
        if isinstance(key, SnapshotKey):
            self._snapshots.discard(key)
        if not siblings and self._is_root(entry.record):
            del self._roots[key.namespace]
        parent = BlockKey(key.namespace, entry.record.parent)
        if (above := self._entries.get(parent)) is not None:
            self._note_leaf(parent, above)

    def _touch(self, key: RecordKey, entry: _Entry) -> None:
        self._clock += 1
        entry.clock = self._clock
        self._note_leaf(key, entry)

    def _note_leaf(self, key: RecordKey, entry: _Entry) -> None:
        """Every evictable entry is in the heap under its present clock; outdated items are skipped when met."""
        if entry.is_evictable:
            heappush(self._heap, (entry.clock, key))
        if len(self._heap) > 4 * len(self._entries) + 64:
            live = {(entry.clock, key) for key, entry in self._entries.items() if entry.is_evictable}
            self._heap = list(live)
            heapify(self._heap)

    @staticmethod
    def _is_root(record: Record) -> bool:
        return record.parent == BlockHash(record.key.namespace)

    def _has_parent(self, record: Record) -> bool:
        return self._is_root(record) or BlockKey(record.key.namespace, record.parent) in self._entries

    def _siblings(self, record: Record) -> set[RecordKey]:
        if self._is_root(record):
            return self._roots.setdefault(record.key.namespace, set())
        return self._entries[BlockKey(record.key.namespace, record.parent)].dependants

    def _dependants(self, namespace: Namespace, block: BlockHash) -> set[RecordKey]:
        if block == BlockHash(namespace):
            return self._roots.get(namespace, set())
        entry = self._entries.get(BlockKey(namespace, block))
        return entry.dependants if entry else set()


__all__ = ("RECORD_OVERHEAD_BYTES", "HotTier", "HotUsage", "record_bytes")
