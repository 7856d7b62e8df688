"""What came into the prefix cache since the server started: it tells "evicted" from "never seen", and old answers from
new ones.

Each arrival is counted under a block: the block itself, or a snapshot that follows it. Bounded; the oldest are
forgotten. It remembers 8 bytes of each hash: a mix-up (about once in 10**14) would mislabel a reason, or cost a lookup.
Any thread.
"""

from collections.abc import Iterable
from threading import Lock

from domain.ids import BlockHash
from domain.record import BlockKey, Record

DEFAULT_CAPACITY = 65_536


class Arrivals:
    """Blocks by when something last arrived at them."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.count = 0
        self._capacity = capacity
        self._lock = Lock()
        self._latest: dict[bytes, int] = {}

    def note(self, records: Iterable[Record]) -> None:
        """These records are here now."""
        with self._lock:
            for record in records:
                place = record.key.hash if isinstance(record.key, BlockKey) else record.key.block_hash
                self.count += 1
                self._latest.pop(place[:8], None)
                self._latest[place[:8]] = self.count
            while len(self._latest) > self._capacity:
                del self._latest[next(iter(self._latest))]

    def any_since(self, count: int, places: Iterable[BlockHash]) -> bool:
        """Whether something arrived at one of these blocks after the first `count` arrivals."""
        return self.count > count and any(self._latest.get(place[:8], 0) > count for place in places)

    def clear(self) -> None:
        with self._lock:
            self._latest.clear()

    def __contains__(self, hash: object) -> bool:
        return isinstance(hash, bytes) and hash[:8] in self._latest


__all__ = ("DEFAULT_CAPACITY", "Arrivals")
