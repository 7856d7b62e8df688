"""Reading records: what a fetch and an explanation ask of a store. What is there is known (`domain/prefix_index`).

Contract
* Threading: every method is safe from any thread and blocks its caller at most for its own I/O. Payloads are decoded
  inside `get`, with the GIL released where the library allows.
* Truth: what is returned is what was put, bit for bit, or a miss. A record that fails its checksum is a miss, and so
  is everything that cannot be read now (volume gone, foreign format, closed): nothing raises.
* Arguments that make no sense (an identifier of another length than 32 bytes) are errors of the caller: ValueError,
  before anything is read.
"""

from collections.abc import Sequence
from typing import Protocol

from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.record import Namespace, Record, RecordKey


class RecordReader(Protocol):
    """See the module docstring."""

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


__all__ = ("RecordReader",)
