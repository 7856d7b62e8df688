"""A tier behind I/O: a store that may be slow or hang, so it is only ever asked by workers that may give up on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from application.ports.block_store import BlockStore
from application.services.prefix.store_read import StoreRead
from application.services.prefix.store_workers import StoreWorkers
from domain.hashing import BlockChain
from domain.holdings import Holdings, num_leading_blocks
from domain.ids import BlockHash, GroupIndex
from domain.record import Namespace, NamespaceInfo, Record, RecordKey
from domain.snapshot_place import by_position, snapshot_places


class RecordWriter(Protocol):
    """What stands in front of the store: takes records for storing, from any thread, without blocking."""

    @property
    def store(self) -> BlockStore:
        """Where they are stored: what a restart would find, without what still waits."""
        ...

    def offer(self, info: NamespaceInfo, records: Sequence[Record]) -> bool:
        """Queue records of one namespace, parents first, or refuse them all: then nothing that follows them should be
        offered either."""
        ...


@dataclass(frozen=True, slots=True)
class StoredTier:
    """`store`: with what waits to be written to it. `writer`: None for a tier that is only read."""

    name: str
    store: BlockStore
    writer: RecordWriter | None
    workers: StoreWorkers

    def find(self, chain: BlockChain, hot: Holdings) -> Holdings:
        """What it has of the prompt. Reads indexes, and blocks for them.

        What waits to be written may follow a block that only memory (`hot`) has.
        """
        keys = chain.prompt_keys()
        blocks = tuple(found.is_readable for found in (self.store.lookup(keys) if keys else ()))
        places = snapshot_places(chain, num_leading_blocks(chain, [Holdings(blocks), hot]))
        found = self.store.find_snapshots(chain.namespace, places)
        return Holdings(blocks, by_position(found, chain.block_size))

    def at_rest(self) -> "StoredTier":
        """The same without what waits to be written."""
        return replace(self, store=self.writer.store, writer=None) if self.writer is not None else self

    def fetch(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex]], on_done: Callable[[], None]
    ) -> StoreRead[Sequence[Record | None]] | None:
        """Read records in a worker; None while the store is stuck."""
        return self.workers.read(partial(self.store.get, keys, groups), on_done)

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> list[tuple[int, ...]]:
        """Runs of ids that follow a block; for explaining. Blocks for its reads."""
        blocks = [token_ids for _, token_ids in self.store.children(namespace, parent, limit)]
        tails = self.store.snapshots(namespace, [parent], limit)[0]
        no_state: frozenset[GroupIndex] = frozenset()
        records = self.store.get(tails, [no_state] * len(tails)) if tails else ()
        return [*blocks, *(record.token_ids for record in records if record is not None)]

    def discard(self, keys: Sequence[RecordKey]) -> None:
        """Let records go, with all that follows them; a worker does that."""
        if self.writer is not None and keys:
            self.workers.keep_up(partial(self.store.delete, keys))

    def touch(self, keys: Sequence[RecordKey]) -> None:
        """Note a use, from a worker."""
        if keys:
            self.workers.keep_up(partial(self.store.touch, keys))


__all__ = ("RecordWriter", "StoredTier")
