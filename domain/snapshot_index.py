"""Snapshots by the block they follow, found by a prompt's own ids: those of other prompts cost nothing.

Asked about a place, it hashes the prompt at the lengths that occur there (fewer than a block has tokens) and looks each
digest up. Not safe for threads: whoever owns it holds a lock.
"""

from domain.ids import BlockHash
from domain.record import Namespace, SnapshotKey
from domain.snapshot_place import OwnSnapshots, SnapshotPlace


class SnapshotIndex:
    """See the module docstring."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[tuple[Namespace, BlockHash], dict[int, set[bytes]]] = {}

    def __len__(self) -> int:
        return sum(len(digests) for lengths in self._places.values() for digests in lengths.values())

    def __contains__(self, key: SnapshotKey) -> bool:
        lengths = self._places.get((key.namespace, key.block_hash), {})
        return key.digest in lengths.get(key.num_partial, ())

    def add(self, key: SnapshotKey) -> None:
        lengths = self._places.setdefault((key.namespace, key.block_hash), {})
        lengths.setdefault(key.num_partial, set()).add(key.digest)

    def discard(self, key: SnapshotKey) -> None:
        """Repeating it does nothing."""
        place = key.namespace, key.block_hash
        lengths = self._places.get(place, {})
        digests = lengths.get(key.num_partial, set())
        digests.discard(key.digest)
        if not digests:
            lengths.pop(key.num_partial, None)
        if not lengths:
            self._places.pop(place, None)

    def clear(self) -> None:
        self._places.clear()

    def find(self, namespace: Namespace, place: SnapshotPlace) -> list[SnapshotKey]:
        """Those of the prompt that goes on like this, ascending by `num_partial`."""
        lengths = self._places.get((namespace, place.block_hash))
        if not lengths:
            return []
        own = OwnSnapshots(namespace, place)
        keys = [own.key(length) for length in sorted(lengths) if length <= own.max_partial]
        return [key for key in keys if key.digest in lengths[key.num_partial]]


__all__ = ("SnapshotIndex",)
