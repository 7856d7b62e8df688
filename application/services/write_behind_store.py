"""A block store seen through the queue in front of it: what waits there is PENDING; all else is the store's."""

from collections.abc import Sequence

from application.ports.block_store import BlockStore, Presence
from application.services.forwarding_store import ForwardingStore
from application.services.write_behind import WriteBehind
from domain.record import BlockKey


class WriteBehindStore(ForwardingStore):
    """`put` goes past the queue; records meant to wait are offered to the WriteBehind itself."""

    def __init__(self, store: BlockStore, writer: WriteBehind) -> None:
        super().__init__(store)
        self._writer = writer

    def lookup(self, keys: Sequence[BlockKey]) -> Sequence[Presence]:
        return self._writer.lookup(keys)


__all__ = ("WriteBehindStore",)
