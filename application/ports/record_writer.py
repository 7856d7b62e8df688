"""Writing records: what a store does for the queue that feeds it, and clears.

Contract
* Threading: every method is safe from any thread and blocks its caller at most for its own I/O. Payloads are encoded
  inside `put`, or from `prepare` on, with the GIL released where the library allows.
* Atomicity: one `put` is one transaction: its records, index, recency and byte accounting become visible together or
  not at all, also after kill -9. A concurrent `get` sees all of it or none. Deleting goes leaf by leaf in bounded
  transactions, so that every state in between holds whole chains.
* Durability: what `put` reported STORED in a store on disk survives a crash of the process and a power cut.
* Trouble (full disk or map, vanished volume) is an outcome and never raises; after `close` it is UNAVAILABLE.
* Idempotence: putting a present record refreshes its recency and is STORED. Deleting what is absent does nothing.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol, TypeAlias

from domain.record import NamespaceInfo, Record, RecordKey


class PutOutcome(Enum):
    """STORED: all records are in. The others store nothing of the batch: ORPHAN (a parent is absent), FULL (no room
    can be made, or the batch exceeds the quota), UNAVAILABLE (closed, read-only, volume gone, writes suspended)."""

    STORED = "stored"
    ORPHAN = "orphan"
    FULL = "full"
    UNAVAILABLE = "unavailable"


PreparedPut: TypeAlias = Callable[[], PutOutcome]
"""Stores what was prepared, as `put` does. Called once, or never, by any thread."""


class RecordWriter(Protocol):
    """See the module docstring."""

    def open_namespace(self, info: NamespaceInfo) -> None:
        """Say what people are shown of a namespace, before its first record or again later. Cheap: it is written with
        the next record of that namespace."""
        ...

    def put(self, records: Sequence[Record]) -> PutOutcome:
        """Store a batch in one transaction. Parents are in the store already or earlier in the batch."""
        ...

    def prepare(self, records: Sequence[Record]) -> PreparedPut:
        """Begin to put a batch, on threads of the store: what takes long and needs no transaction. So one batch is
        made ready while another is written, the parents of its records perhaps. Returns at once and never raises.
        """
        ...

    def delete(self, keys: Sequence[RecordKey]) -> int:
        """Remove records with everything that follows them; returns how many records went."""
        ...

    def flush(self) -> None:
        """Write out what is held back (recency) and make everything STORED so far durable."""
        ...


__all__ = ("PreparedPut", "PutOutcome", "RecordWriter")
