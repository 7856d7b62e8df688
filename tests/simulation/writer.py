"""The queue in front of the store, advanced by the simulator instead of by a thread."""

from collections import Counter, deque
from collections.abc import Sequence

from application.ports.block_store import BlockStore, Presence
from domain.record import BlockKey, NamespaceInfo, Record, RecordKey


class SteppedWriter:
    """A RecordWriter with a bounded queue; nothing is written but by `pump`. Keeps WriteBehind's promises."""

    def __init__(self, store: BlockStore, max_offers: int) -> None:
        self._store = store
        self._max_offers = max_offers
        self._queue: deque[tuple[NamespaceInfo, tuple[Record, ...]]] = deque()
        self._pending: Counter[RecordKey] = Counter()

    def offer(self, info: NamespaceInfo, records: Sequence[Record]) -> bool:
        if len(self._queue) >= self._max_offers:
            return False
        self._queue.append((info, tuple(records)))
        self._pending.update(record.key for record in records)
        return True

    def lookup(self, keys: Sequence[BlockKey]) -> Sequence[Presence]:
        found = self._store.lookup(keys)
        return [
            Presence.PENDING if presence is Presence.MISS and self._pending[key] else presence
            for key, presence in zip(keys, found, strict=True)
        ]

    def pump(self, num_offers: int) -> None:
        """Write up to so many offers."""
        for _ in range(min(num_offers, len(self._queue))):
            info, records = self._queue.popleft()
            self._store.open_namespace(info)
            self._store.put(records)
            self._pending -= Counter(record.key for record in records)


__all__ = ("SteppedWriter",)
