"""The hot tier: records in RAM in front of the store, within a byte budget.

Invariants (checked by `check_integrity`)
* Those of a RecordTree: chains without holes, exact `used_bytes`, the least recently used leaf goes first.
* `used_bytes` never exceeds the budget, except by what is pinned while the budget shrinks.

Records refer to immutable payloads. Evicting a record whose payload is still in use would free nothing, so users of a
payload pin its record: `acquire` pins, `release` unpins, counted. Any thread.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from heapq import nlargest
from itertools import islice
from threading import Lock

from application.ports.cache_stats import Cleared, HotUsage
from application.services.prefix.indexes import Indexes
from domain.id_row import ID_BYTES, IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.index import HOT, RecordNeed
from domain.prefix.record import BlockKey, Namespace, Record, RecordKey
from domain.prefix.record_tree import Node, RecordTree, parent_of

RECORD_OVERHEAD_BYTES = 1024
"""Memory of a record besides its payload: objects, index entries."""

SCANNED_PER_FOLLOWER = 32
"""Records looked at for each follower asked for: where thousands follow one block, the latest are not searched for."""

GroupSet = frozenset[GroupIndex]


def record_bytes(record: Record) -> int:
    """The bytes that a record counts against the budget."""
    return record.raw_bytes + ID_BYTES * len(record.key_ids) + RECORD_OVERHEAD_BYTES


class HotTier:
    """The tier. `indexes` are informed of each record that comes or goes; set them before the first put."""

    name = "hot"

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._lock = Lock()
        self.indexes = Indexes()
        self._tree = RecordTree(lambda key: self.indexes.remove((key,), HOT))
        # Pins of records that were cleared while they were held: their releases are still to come.
        self._forgotten: Counter[RecordKey] = Counter()

    @property
    def budget_bytes(self) -> int:
        return self._budget_bytes

    def held_bytes(self, *, with_host: bool = True) -> int:
        """Used now; without what lies in host memory where that is another one than the compute backend's. Cheap."""
        with self._lock:
            return self._tree.used_bytes - (0 if with_host else self._tree.host_bytes)

    def put(self, kept: Sequence[Record]) -> int:
        """Keeps records, in order; returns how many of them are in the tier afterwards. A record whose parent is
        absent, or for which no room can be made, is refused. A present record gains the groups that it lacked.
        """
        with self._lock:
            return sum(self._put(record) for record in kept)

    def get(self, keys: Sequence[RecordKey]) -> list[Record | None]:
        """Returns the present records, None for the others. Neither pins them nor counts as use."""
        with self._lock:
            nodes = [self._tree.nodes.get(key) for key in keys]
            return [node.record if node is not None else None for node in nodes]

    def holds(self, needs: Sequence[RecordNeed]) -> list[bool]:
        """Returns which of these are here with all groups that are needed. Does not count as use."""
        with self._lock:
            nodes = [self._tree.nodes.get(need.key) for need in needs]
            pairs = zip(needs, nodes, strict=True)
            return [node is not None and need.groups <= node.record.groups.keys() for need, node in pairs]

    def acquire(self, keys: Sequence[RecordKey], groups: Sequence[GroupSet | None]) -> list[Record | None]:
        """Pins and returns the present records that have all of their `groups` (None: any); None for the others.

        Counts as use. Each record returned must be released once.
        """
        found: list[Record | None] = []
        with self._lock:
            for key, wanted in zip(keys, groups, strict=True):
                node = self._tree.nodes.get(key)
                if node is None or not (wanted or frozenset()) <= node.record.groups.keys():
                    found.append(None)
                    continue
                self._tree.pin(node)
                self._tree.touch(node)
                found.append(node.record)
        return found

    def release(self, keys: Sequence[RecordKey]) -> None:
        """Undo one `acquire` of each key."""
        with self._lock:
            for key in keys:
                if self._forgotten and self._forgotten[key]:
                    self._forgotten[key] -= 1
                else:
                    self._tree.unpin(self._tree.nodes[key])
            self._forgotten = +self._forgotten
            self._make_room(0)

    def clear(self, ended: Collection[Namespace]) -> Cleared:
        """Drop everything of the `ended` namespaces, pinned or not. Holders of a payload continue with it and release
        it as usual."""
        with self._lock:
            gone = self._tree.drop(ended)
            for node in gone:
                self._forgotten[node.record.key] += node.pins
            self._forgotten = +self._forgotten
            return Cleared(num_hot=len(gone), hot_bytes=sum(node.size_bytes for node in gone))

    def empty(self) -> Cleared:
        """Evicts all records but those that are pinned, whose payloads are in use."""
        with self._lock:
            tree = self._tree
            before, used_bytes = len(tree.nodes), tree.used_bytes
            tree.make_room(0, 0)
            return Cleared(num_hot=before - len(tree.nodes), hot_bytes=used_bytes - tree.used_bytes)

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> list[IdRow]:
        """Token ids of up to `limit` records that follow `parent`, lately used ones first; for explaining."""
        with self._lock:
            keys = islice(self._tree.following(BlockKey(namespace, parent)), limit * SCANNED_PER_FOLLOWER)
            latest = nlargest(limit, (self._tree.nodes[key] for key in keys), key=lambda node: node.clock)
            return [node.record.key_ids for node in latest]

    def drop(self, keys: Sequence[RecordKey]) -> None:
        """Drops records in this order, if each is by then an unpinned leaf; others stay."""
        with self._lock:
            for key in keys:
                node = self._tree.nodes.get(key)
                if node is not None and self._tree.is_evictable(node):
                    self._tree.remove_leaf(key)

    def resize(self, budget_bytes: int) -> int:
        """Changes the budget, evicting what no longer fits; returns the freed bytes."""
        # Pinned records stay above a smaller budget, because their payloads are in use and evicting them would free
        # nothing. `release` evicts them later, so a caller that needs memory must go by the returned bytes.
        with self._lock:
            before = self._tree.used_bytes
            self._budget_bytes = budget_bytes
            self._make_room(0)
            return before - self._tree.used_bytes

    def usage(self) -> HotUsage:
        """Returns the usage. Cheap."""
        with self._lock:
            tree = self._tree
            return HotUsage(
                budget_bytes=self._budget_bytes,
                used_bytes=tree.used_bytes,
                num_blocks=tree.num_blocks,
                num_snapshots=len(tree.nodes) - tree.num_blocks,
                num_pinned=tree.num_pinned,
                evicted=tree.num_evicted,
            )

    def check_integrity(self) -> list[str]:
        """Recounts everything; returns one line for each problem, empty when sound."""
        with self._lock:
            tree = self._tree
            problems = tree.problems()
            problems += [
                f"{key} counts {node.size_bytes} bytes, has {record_bytes(node.record)}"
                for key, node in tree.nodes.items()
                if node.size_bytes != record_bytes(node.record)
            ]
            if tree.used_bytes > self._budget_bytes and any(map(tree.is_evictable, tree.nodes.values())):
                problems.append(f"{tree.used_bytes} bytes used of {self._budget_bytes}, and some could be evicted")
            return problems

    def _put(self, record: Record) -> bool:
        node = self._tree.nodes.get(record.key)
        if node is not None:
            self._widen(node, record)
            return True
        if not self._tree.has_parent(record):
            return False
        # The parent may be the least recently used leaf. Evicted for its own child, it would leave a hole in the chain.
        size_bytes = record_bytes(record)
        if not self._make_room(size_bytes, parent_of(record)):
            return False
        self._tree.insert(record, size_bytes)
        self.indexes.add((record.key,), HOT)
        return True

    def _widen(self, node: Node, record: Record) -> None:
        """Add the groups that a record read in part was missing."""
        missing = {index: payload for index, payload in record.groups.items() if index not in node.record.groups}
        if missing:
            whole = replace(node.record, groups={**node.record.groups, **missing})
            size_bytes = record_bytes(whole)
            if self._make_room(size_bytes - node.size_bytes, record.key):
                self._tree.replace(node, whole, size_bytes)
        self._tree.touch(node)

    def _make_room(self, needed_bytes: int, kept: RecordKey | None = None) -> bool:
        return self._tree.make_room(needed_bytes, self._budget_bytes, () if kept is None else (kept,))
