"""Reading records: what a lookup, a fetch and an explanation ask of a tier that keeps them.

A local store, the queue in front of it and a store that servers share are all read in this way.

Contract
* Threading: every method is safe from any thread and blocks its caller at most for its own I/O. Payloads are decoded
  inside `get`, with the GIL released where the library allows.
* Truth: what is returned is what was put, bit for bit, or a miss. A record that fails its checksum is a miss, and so
  is everything that cannot be read now (volume gone, foreign format, closed): nothing raises.
* Arguments that make no sense (an identifier of another length than 32 bytes) are errors of the caller: ValueError,
  before anything is read.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.record import BlockKey, Namespace, Record, RecordKey, SnapshotKey
from domain.snapshot_place import SnapshotPlace


class Presence(Enum):
    """HIT: `get` finds it now, and after a crash. PENDING: `get` finds it now, while it waits to be stored or is being
    stored; only a queue in front of a store answers so. MISS: it does not."""

    HIT = "hit"
    PENDING = "pending"
    MISS = "miss"

    @property
    def is_readable(self) -> bool:
        return self is not Presence.MISS


class RecordReader(Protocol):
    """See the module docstring."""

    def lookup(self, keys: Sequence[BlockKey]) -> Sequence[Presence]:
        """Presence of blocks, in the order asked. Does not count as use."""
        ...

    def find_snapshots(self, namespace: Namespace, places: Sequence[SnapshotPlace]) -> Sequence[Sequence[SnapshotKey]]:
        """The snapshots of one prompt at each place, ascending by `num_partial`. Does not count as use.

        Costs a few probes a place (at most as many as a block has tokens), however many snapshots of other prompts
        follow the same block.
        """
        ...

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        """Read records, None for a miss. `groups` limits each key to those state groups (None: all of them)."""
        ...

    def touch(self, keys: Sequence[RecordKey]) -> None:
        """Note a use; of absent records nothing. Cheap: recency may be written later, with the next write."""
        ...

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> Sequence[IdRow]:
        """Token ids of up to `limit` blocks and up to `limit` snapshots that follow a block (or the namespace's root),
        for explaining where a prompt leaves what is stored. Does not count as use."""
        ...


__all__ = ("Presence", "RecordReader")
