"""A store that several servers share. None of them knows what it holds: others write to it, and it evicts.

Contract
* Threading: every method is safe from any thread and blocks for its own I/O, bounded by the adapter's timeout for each
  answer of the server. A caller with a deadline does not wait for the method to return.
* Truth: `read` returns the bytes that were put under the same fleet's key, bit for bit, or None. What fails its
  authentication (forged, cut, moved to another key) or cannot be decoded is None, counted in `num_rejected`, and
  removed. `find` and `lengths` give hints that nothing authenticates: a read of what they name may miss.
* Isolation: fleets with different keys share nothing, and neither do namespaces.
* Idempotence: putting a present record changes nothing. Records are put in any order, without their parents.
* Eviction is the store's own, at any time, in any order: chains may have holes.
* Errors: SharedStoreError, and no other. A batch that raised may be there in part; each record in it is whole.
* After `close`: SharedStoreError(UNREACHABLE).
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from domain.ids import BlockHash
from domain.prefix.record import Namespace, NamespaceInfo, Record, RecordKey


class SharedFailure(Enum):
    """UNREACHABLE: no connection, or no answer within the timeout. FULL: the store takes no more. REFUSED: any other
    answer that is an error (credentials, permissions, a read-only replica)."""

    UNREACHABLE = "unreachable"
    FULL = "full"
    REFUSED = "refused"


class SharedStoreError(Exception):
    """The store did not do what it was asked for. The message is for the log and holds no credentials."""

    def __init__(self, failure: SharedFailure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class SharedHint(NamedTuple):
    """A record that the store claimed to have. `size_bytes`: encoded; `tag`: the adapter's own."""

    key: RecordKey
    size_bytes: int
    tag: bytes


class SharedRead(NamedTuple):
    """`records`: None for a miss. `encoded`: the same, as they arrived, for another store. `num_rejected`: misses that
    are there and not authentic. `num_bytes`: received."""

    records: Sequence[Record | None]
    encoded: Sequence[Record | None]
    num_rejected: int
    num_bytes: int


class SharedPut(NamedTuple):
    """Records that were written, and that were there already; the written bytes, encoded."""

    num_written: int
    num_present: int
    num_bytes: int


class SharedStore(Protocol):
    """A store that several servers share."""

    def find(self, keys: Sequence[RecordKey]) -> Sequence[SharedHint | None]:
        """Returns a hint for each record that is there. Reads no state."""
        ...

    def lengths(self, namespace: Namespace, parents: Sequence[BlockHash]) -> Sequence[frozenset[int]]:
        """Returns, for each block (or the namespace's root), how many tokens after its end snapshots were put. Their
        keys follow from a prompt's tokens."""
        ...

    def read(self, hints: Sequence[SharedHint]) -> SharedRead:
        """Reads records whole, in one round trip."""
        ...

    def put(self, info: NamespaceInfo, records: Sequence[Record]) -> SharedPut:
        """Encodes and writes those of the records of one namespace that are absent."""
        ...

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> int:
        """Removes all records of the fleet's namespaces that `includes` accepts (None: of all), also those that other
        servers wrote; returns how many. What is put meanwhile may stay. Looks at all that the store holds."""
        ...

    def ping(self) -> None: ...

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        ...
