"""Records in chains, of which the least recently used leaf is evicted first when room is needed.

Invariants (see `problems`)
* A record's parent is the root of its namespace or in the tree: a chain has no hole.
* `used_bytes` is the exact sum over the records, `host_bytes` of their state that lies in host memory; `num_blocks` and
  `num_pinned` count them: reading any of these costs nothing, however many records there are.
* What is pinned, or has something that follows it, is not evicted.

Not safe for threads: the owner of a tree holds a lock.
"""

from collections.abc import Callable, Collection, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from domain.ids import BlockHash
from domain.prefix.record import BlockKey, Namespace, Record, RecordKey

_NONE: frozenset[RecordKey] = frozenset()


def parent_of(record: Record) -> BlockKey:
    """Returns the block that a record follows. For the first of a chain it is the namespace's root, which is not a
    record."""
    return BlockKey(record.key.namespace, record.parent)


def is_first(record: Record) -> bool:
    """Returns whether the record follows the root of its namespace."""
    return record.parent == BlockHash(record.key.namespace)


@dataclass(slots=True)
class Node:
    """The entry of a record. `size_bytes`: its charge. `clock`: its last use. `pins`: the number of holders."""

    record: Record
    size_bytes: int
    clock: int = 0
    pins: int = 0


class RecordTree:
    """Records with pins and recency. `nodes` is read-only for others."""

    def __init__(self, note_gone: Callable[[RecordKey], object] = lambda _: None) -> None:
        """`note_gone`: called with the key of each record that is removed."""
        self._note_gone = note_gone
        self.nodes: dict[RecordKey, Node] = {}
        self._following: dict[BlockKey, set[RecordKey]] = {}
        self.used_bytes = 0
        self.host_bytes = 0
        self.num_evicted = 0
        self.num_blocks = 0
        self.num_pinned = 0
        self._clock = 0
        self._heap: list[tuple[int, RecordKey]] = []

    def has_parent(self, record: Record) -> bool:
        return is_first(record) or parent_of(record) in self.nodes

    def following(self, key: RecordKey) -> Set[RecordKey]:
        """Returns the keys that directly follow a block or a root; nothing follows a snapshot."""
        return self._following.get(key, _NONE) if isinstance(key, BlockKey) else _NONE

    def namespaces(self) -> set[Namespace]:
        """Returns the namespaces of which there is a record."""
        return {parent.namespace for parent in self._following}

    def insert(self, record: Record, size_bytes: int) -> None:
        """Inserts an absent record whose parent is present."""
        node = self.nodes[record.key] = Node(record, size_bytes)
        self._following.setdefault(parent_of(record), set()).add(record.key)
        self.used_bytes += size_bytes
        self.host_bytes += record.host_bytes
        self.num_blocks += isinstance(record.key, BlockKey)
        self.touch(node)

    def replace(self, node: Node, record: Record, size_bytes: int) -> None:
        """Replaces the content of a record under the same key."""
        self.used_bytes += size_bytes - node.size_bytes
        self.host_bytes += record.host_bytes - node.record.host_bytes
        node.record, node.size_bytes = record, size_bytes

    def touch(self, node: Node) -> None:
        """Marks a record as the most recently used."""
        self._clock += 1
        node.clock = self._clock
        self._note(node)

    def pin(self, node: Node) -> None:
        """Protects a record from eviction until it was unpinned as often."""
        self.num_pinned += not node.pins
        node.pins += 1

    def unpin(self, node: Node) -> None:
        """Undoes one `pin`. Raises RuntimeError when the record was not pinned."""
        if not node.pins:
            raise RuntimeError(f"{node.record.key} was released more often than acquired")
        node.pins -= 1
        self.num_pinned -= not node.pins
        self._note(node)

    def is_evictable(self, node: Node) -> bool:
        return not node.pins and not self.following(node.record.key)

    def remove_leaf(self, key: RecordKey) -> None:
        record = self._take(key).record
        if (parent := self.nodes.get(parent_of(record))) is not None:
            self._note(parent)

    def remove_below(self, key: RecordKey) -> int:
        """Removes a record with all that follow it, pinned or not; returns the number of removed records."""
        if key not in self.nodes:
            return 0
        num_removed, path = 0, [key]
        while path:
            if following := self.following(path[-1]):
                path.append(next(iter(following)))
            else:
                self.remove_leaf(path.pop())
                num_removed += 1
        return num_removed

    def drop(self, namespaces: Collection[Namespace]) -> list[Node]:
        """Removes all records of these namespaces, pinned or not; returns the removed ones."""
        gone = [node for key, node in self.nodes.items() if key.namespace in namespaces]
        for node in gone:
            self._take(node.record.key)
        self._rebuild()
        return gone

    def make_room(self, needed_bytes: int, limit_bytes: int, kept: Collection[RecordKey] = ()) -> bool:
        """Evicts until `needed_bytes` more fit into the limit, but none of `kept`. Returns False when that is
        impossible."""
        if needed_bytes > limit_bytes:
            return False
        spared: list[tuple[int, RecordKey]] = []
        while self.used_bytes + needed_bytes > limit_bytes and self._heap:
            item = heappop(self._heap)
            if not self._is_current(item):
                continue
            if item[1] in kept:
                spared.append(item)
                continue
            self.remove_leaf(item[1])
            self.num_evicted += 1
        for item in spared:
            heappush(self._heap, item)
        return self.used_bytes + needed_bytes <= limit_bytes

    def problems(self) -> list[str]:
        """Recounts everything; returns one line for each problem, empty when sound."""
        records = [node.record for node in self.nodes.values()]
        links = {(parent, key) for parent, keys in self._following.items() for key in keys}
        known = {(parent_of(record), record.key) for record in records}
        found = [f"{key} is not linked from its parent" for _, key in known - links]
        found += [f"{parent} links to {key}" for parent, key in links - known]
        found += [f"{record.key} has no parent here" for record in records if not self.has_parent(record)]
        counted = sum(node.size_bytes for node in self.nodes.values())
        if counted != self.used_bytes:
            found.append(f"{self.used_bytes} bytes accounted, {counted} counted")
        if (on_host := sum(record.host_bytes for record in records)) != self.host_bytes:
            found.append(f"{self.host_bytes} bytes accounted in host memory, {on_host} counted")
        num_blocks = sum(isinstance(record.key, BlockKey) for record in records)
        num_pinned = sum(node.pins > 0 for node in self.nodes.values())
        if (num_blocks, num_pinned) != (self.num_blocks, self.num_pinned):
            accounted = f"{self.num_blocks} blocks and {self.num_pinned} pinned"
            found.append(f"{accounted} accounted, {num_blocks} and {num_pinned} counted")
        listed = set(self._heap)
        return found + [
            f"{key} is a leaf that eviction cannot find"
            for key, node in self.nodes.items()
            if self.is_evictable(node) and (node.clock, key) not in listed
        ]

    def _take(self, key: RecordKey) -> Node:
        node = self.nodes.pop(key)
        parent = parent_of(node.record)
        self._following[parent].discard(key)
        if not self._following[parent]:
            del self._following[parent]
        self.used_bytes -= node.size_bytes
        self.host_bytes -= node.record.host_bytes
        self.num_blocks -= isinstance(key, BlockKey)
        self.num_pinned -= node.pins > 0
        self._note_gone(key)
        return node

    def _note(self, node: Node) -> None:
        """Adds a record to the heap if it is evictable. Every evictable record is in the heap under its present clock;
        outdated items are skipped."""
        if self.is_evictable(node):
            heappush(self._heap, (node.clock, node.record.key))
            if len(self._heap) > 4 * len(self.nodes) + 64:
                self._rebuild()

    def _rebuild(self) -> None:
        self._heap = list({item for item in self._heap if self._is_current(item)})
        heapify(self._heap)

    def _is_current(self, item: tuple[int, RecordKey]) -> bool:
        clock, key = item
        node = self.nodes.get(key)
        return node is not None and node.clock == clock and self.is_evictable(node)
