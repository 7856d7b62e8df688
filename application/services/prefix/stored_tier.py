"""A tier behind I/O: a store that may be slow or hang, so it is only ever asked by workers that may give up on it.

What was read is landed by the worker that read it: brought to where restoring takes it from fastest. A record that
cannot be landed is given on as it was read: restoring it costs more, and is right all the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from application.ports.record_reader import RecordReader
from application.services.faults import described
from application.services.prefix.store_lanes import StoreLanes, StoreRead
from application.services.prefix.write_behind import WriteBehind
from domain.hashing import BlockChain
from domain.holdings import Holdings, num_leading_blocks
from domain.ids import GroupIndex
from domain.payload import StatePayload
from domain.record import Record, RecordKey
from domain.snapshot_place import by_position, snapshot_places

Land = Callable[[StatePayload], StatePayload]
"""The same state in the compute backend's memory, or as it is where that is as good. Any thread."""


@dataclass(frozen=True, slots=True)
class StoredTier:
    """`reader`: with what waits to be written. `writer`: None for a tier that is only read. `land`: None where
    nothing is gained."""

    name: str
    reader: RecordReader
    lanes: StoreLanes
    writer: WriteBehind | None = None
    land: Land | None = None

    def at_rest(self) -> "StoredTier":
        """The same without what waits to be written."""
        return replace(self, reader=self.writer.store, writer=None) if self.writer is not None else self

    def find(self, chain: BlockChain, hot: Callable[[], Holdings]) -> Holdings:
        """What it has of the prompt. Reads indexes, and blocks for them.

        What waits to be written may follow a block that only memory (`hot`) has; that is asked where a block is
        missing here.
        """
        keys = chain.prompt_keys()
        blocks = tuple(found.is_readable for found in (self.reader.lookup(keys) if keys else ()))
        holdings = [Holdings(blocks)] if all(blocks) else [Holdings(blocks), hot()]
        places = snapshot_places(chain, num_leading_blocks(chain, holdings))
        found = self.reader.find_snapshots(chain.namespace, places)
        return Holdings(blocks, by_position(found, chain.block_size))

    def fetch(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex]], on_done: Callable[[], None]
    ) -> StoreRead[Sequence[Record | None]] | None:
        """Read records in a worker; None while the store is stuck."""
        return self.lanes.read(partial(self._read, keys, groups), on_done)

    def discard(self, keys: Sequence[RecordKey]) -> None:
        """Let records go, with all that follows them; a worker does that."""
        if self.writer is not None and keys:
            self.lanes.keep_up(partial(self.writer.delete, keys))

    def touch(self, keys: Sequence[RecordKey]) -> None:
        """Note a use, from a worker."""
        if keys:
            self.lanes.keep_up(partial(self.reader.touch, keys))

    def _read(self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex]]) -> Sequence[Record | None]:
        started_ns = self.lanes.now_ns()
        found = self.reader.get(keys, groups)
        self.lanes.read_records(found, started_ns)
        return found if self.land is None else [record and self._landed(record, self.land) for record in found]

    def _landed(self, record: Record, land: Land) -> Record:
        try:
            return replace(record, groups={index: land(payload) for index, payload in record.groups.items()})
        except Exception as error:  # out of device memory, most likely
            self.lanes.fault("prefix.land", described(error))
            return record


__all__ = ("Land", "StoredTier")
