"""What follows what: records found from the block they follow, and snapshots found by a prompt's own tokens.

A record may come before its parent, and stay after it. Not safe for threads: whoever owns it holds a lock.
"""

from collections.abc import Collection, Set

from domain.ids import BlockHash
from domain.record import BlockKey, Namespace, Record, RecordKey, SnapshotKey
from domain.snapshot_index import SnapshotIndex
from domain.snapshot_place import SnapshotPlace

_NONE: frozenset[RecordKey] = frozenset()


def parent_of(record: Record) -> BlockKey:
    """The block that a record follows. For the first of a chain it is the namespace's root, which is no record."""
    return BlockKey(record.key.namespace, record.parent)


def is_first(record: Record) -> bool:
    """Whether it follows the root of its namespace."""
    return record.parent == BlockHash(record.key.namespace)


class RecordLinks:
    """See the module docstring."""

    def __init__(self) -> None:
        self._following: dict[BlockKey, set[RecordKey]] = {}
        self._snapshots = SnapshotIndex()

    def add(self, record: Record) -> None:
        """Repeating it does nothing."""
        self._following.setdefault(parent_of(record), set()).add(record.key)
        if isinstance(record.key, SnapshotKey):
            self._snapshots.add(record.key)

    def discard(self, record: Record) -> None:
        """A record that was added."""
        parent = parent_of(record)
        self._following[parent].discard(record.key)
        if not self._following[parent]:
            del self._following[parent]
        if isinstance(record.key, SnapshotKey):
            self._snapshots.discard(record.key)

    def following(self, key: RecordKey) -> Set[RecordKey]:
        """What directly follows a block, or a root; nothing follows a snapshot."""
        return self._following.get(key, _NONE) if isinstance(key, BlockKey) else _NONE

    def parents(self) -> Collection[BlockKey]:
        """All blocks and roots that something follows."""
        return self._following.keys()

    def find_snapshots(self, namespace: Namespace, place: SnapshotPlace) -> list[SnapshotKey]:
        """Those of one prompt at a place, ascending by `num_partial`, however many others follow the same block."""
        return self._snapshots.find(namespace, place)

    def problems(self, records: Collection[Record]) -> list[str]:
        """What does not agree with `records`, all that there are; a line each."""
        links = {(parent, key) for parent, keys in self._following.items() for key in keys}
        known = {(parent_of(record), record.key) for record in records}
        found = [f"{key} is not linked from its parent" for _, key in known - links]
        found += [f"{parent} links to {key}" for parent, key in links - known]
        snapshots = [record.key for record in records if isinstance(record.key, SnapshotKey)]
        found += [f"{key} is not found by its prompt" for key in snapshots if key not in self._snapshots]
        if len(snapshots) != len(self._snapshots):
            found.append(f"{len(self._snapshots)} snapshots to be found, {len(snapshots)} there")
        return found


__all__ = ("RecordLinks", "is_first", "parent_of")
