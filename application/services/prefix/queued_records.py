"""What waits for the store, to be found as in the store: by key, and by what it hangs on.

A record may wait more than once, and is here until its last copy goes; all copies are alike, because a key says all
about its record. Not safe for threads: whoever owns it holds a lock.
"""

from collections import Counter
from collections.abc import Iterable

from domain.ids import BlockHash
from domain.record import BlockKey, Namespace, Record, RecordKey, SnapshotKey
from domain.snapshot_index import SnapshotIndex
from domain.snapshot_place import SnapshotPlace


class QueuedRecords:
    """See the module docstring."""

    def __init__(self) -> None:
        self._records: dict[RecordKey, Record] = {}
        self._copies: Counter[RecordKey] = Counter()
        self._hanging: dict[BlockKey, set[RecordKey]] = {}
        self._snapshots = SnapshotIndex()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            self._copies[record.key] += 1
            self._records.setdefault(record.key, record)
            self._hanging.setdefault(_above(record), set()).add(record.key)
            if isinstance(record.key, SnapshotKey):
                self._snapshots.add(record.key)

    def remove(self, records: Iterable[Record]) -> None:
        """Take one copy of each away."""
        for record in records:
            key, above = record.key, _above(record)
            self._copies[key] -= 1
            if self._copies[key]:
                continue
            del self._copies[key], self._records[key]
            self._hanging[above].discard(key)
            if isinstance(key, SnapshotKey):
                self._snapshots.discard(key)
            if not self._hanging[above]:
                del self._hanging[above]

    def get(self, key: RecordKey) -> Record | None:
        return self._records.get(key)

    def find_snapshots(self, namespace: Namespace, place: SnapshotPlace) -> list[SnapshotKey]:
        """Those of one prompt at a place, ascending by `num_partial`."""
        return self._snapshots.find(namespace, place)

    def snapshots(self, namespace: Namespace, block: BlockHash) -> list[SnapshotKey]:
        """Those hanging on a block, or on the namespace itself; in no order."""
        keys = self._hanging.get(BlockKey(namespace, block), ())
        return [key for key in keys if isinstance(key, SnapshotKey)]

    def children(self, namespace: Namespace, parent: BlockHash) -> dict[BlockKey, tuple[int, ...]]:
        """The blocks that follow one, or the namespace itself, with their tokens."""
        keys = self._hanging.get(BlockKey(namespace, parent), ())
        return {key: self._records[key].token_ids for key in keys if isinstance(key, BlockKey)}

    def below(self, keys: Iterable[RecordKey]) -> set[RecordKey]:
        """Those of `keys` that are here, and everything here that hangs on any of them."""
        found: set[RecordKey] = set()
        ahead = list(keys)
        while ahead:
            key = ahead.pop()
            if key in self._records:
                found.add(key)
            if isinstance(key, BlockKey):
                ahead += self._hanging.get(key, set()) - found
        return found

    def outer_parents(self) -> list[BlockKey]:
        """The blocks that something here hangs on and that are not here themselves. Namespaces are left out."""
        return [key for key in self._hanging if key not in self._records and key.hash != BlockHash(key.namespace)]

    def of_namespace(self, namespace: Namespace) -> list[RecordKey]:
        return [key for key in self._records if key.namespace == namespace]


def _above(record: Record) -> BlockKey:
    return BlockKey(record.key.namespace, record.parent)


__all__ = ("QueuedRecords",)
