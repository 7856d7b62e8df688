"""Which blocks were here at some time: what tells "evicted" from "never seen". Bounded; oldest forgotten first.

It remembers 8 bytes of each hash: a mix-up (about once in 10**14) would only mislabel a reason. Any thread.
"""

from collections.abc import Iterable
from threading import Lock

from domain.ids import BlockHash

DEFAULT_CAPACITY = 65_536


class SeenBlocks:
    """A set of block hashes that forgets the oldest beyond `capacity`."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._capacity = capacity
        self._lock = Lock()
        self._seen: dict[bytes, None] = {}

    def note(self, hashes: Iterable[BlockHash]) -> None:
        """These blocks are here now."""
        with self._lock:
            for hash in hashes:
                self._seen.pop(hash[:8], None)
                self._seen[hash[:8]] = None
            while len(self._seen) > self._capacity:
                del self._seen[next(iter(self._seen))]

    def clear(self) -> None:
        with self._lock:
            self._seen.clear()

    def __contains__(self, hash: BlockHash) -> bool:
        return hash[:8] in self._seen


__all__ = ("DEFAULT_CAPACITY", "SeenBlocks")
