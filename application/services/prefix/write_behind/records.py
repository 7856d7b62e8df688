"""What waits for the store, to be found as in the store: by key, by prompt, and by what it follows.

A record may wait more than once, and is here until its last copy goes; all copies are alike, because a key says all
about its record. Not safe for threads: whoever owns it holds a lock.
"""

from collections import Counter
from collections.abc import Iterable

from domain.ids import BlockHash
from domain.record import BlockKey, Namespace, Record, RecordKey, SnapshotKey
from domain.record_links import RecordLinks
from domain.snapshot_place import SnapshotPlace


class QueuedRecords:
    """See the module docstring."""

    def __init__(self) -> None:
        self._records: dict[RecordKey, Record] = {}
        self._copies: Counter[RecordKey] = Counter()
        self._links = RecordLinks()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            self._copies[record.key] += 1
            if self._copies[record.key] == 1:
                self._records[record.key] = record
                self._links.add(record)

    def remove(self, records: Iterable[Record]) -> None:
        """Take one copy of each away."""
        for record in records:
            self._copies[record.key] -= 1
            if not self._copies[record.key]:
                del self._copies[record.key]
                self._links.discard(self._records.pop(record.key))

    def get(self, key: RecordKey) -> Record | None:
        return self._records.get(key)

    def find_snapshots(self, namespace: Namespace, place: SnapshotPlace) -> list[SnapshotKey]:
        """Those of one prompt at a place, ascending by `num_partial`."""
        return self._links.find_snapshots(namespace, place)

    def followers(self, namespace: Namespace, parent: BlockHash) -> list[tuple[int, ...]]:
        """The token ids of what follows a block, or the namespace's root."""
        return [self._records[key].key_ids for key in self._links.following(BlockKey(namespace, parent))]

    def below(self, keys: Iterable[RecordKey]) -> set[RecordKey]:
        """Those of `keys` that are here, and everything here that follows any of them."""
        found: set[RecordKey] = set()
        ahead = list(keys)
        while ahead:
            key = ahead.pop()
            if key in self._records:
                found.add(key)
            if isinstance(key, BlockKey):
                ahead += self._links.following(key) - found
        return found

    def outer_parents(self) -> list[BlockKey]:
        """The blocks that something here follows and that are not here themselves. Roots of namespaces are left out."""
        parents = self._links.parents()
        return [key for key in parents if key not in self._records and key.hash != BlockHash(key.namespace)]


__all__ = ("QueuedRecords",)
