"""The queue in front of the store, advanced by the test instead of by a thread."""

from collections.abc import Sequence

from application.ports.block_store import BlockStore, PutOutcome
from application.services.prefix.write_queue import Offer, WriteQueue
from domain.record import NamespaceInfo, Record, RecordKey

_ALL = 1 << 62


class SteppedWriter:
    """A RecordWriter that does in three steps what WriteBehind's thread does: take offers, put one, settle it."""

    def __init__(self, store: BlockStore, max_bytes: int = _ALL) -> None:
        self.store = store
        self.queue = WriteQueue(max_bytes)
        self._taken: list[Offer] = []
        self._outcome: PutOutcome | None = None

    def offer(self, info: NamespaceInfo, records: Sequence[Record]) -> bool:
        return self.queue.offer(info, records) is None

    def withdraw(self, keys: Sequence[RecordKey]) -> set[RecordKey]:
        gone = self.queue.withdraw(keys)
        while self.queue.is_writing([*keys, *gone]):
            self.step()
        return gone

    def step(self) -> bool:
        """The next of the three; False when nothing is left to do."""
        if not self._taken:
            self._taken = self.queue.take(1) or []
            return bool(self._taken)
        offer = self._taken[0]
        if self._outcome is None:
            self.store.open_namespace(offer.info)
            self._outcome = self.store.put(offer.records)
            return True
        self.queue.settle(offer, None if self._outcome is PutOutcome.STORED else self._outcome.value)
        self._taken, self._outcome = self._taken[1:], None
        return True

    def pump(self, num_steps: int = 1 << 30) -> None:
        """Up to so many steps."""
        for _ in range(num_steps):
            if not self.step():
                break


__all__ = ("SteppedWriter",)
