"""The persistent tier: records in, records out, nothing wrong ever served.

Contract
* Threading: every method is safe from any thread and blocks its caller at most for its own I/O. Encoding and decoding
  of payloads happen inside `put` and `get`, with the GIL released where the library allows.
* Atomicity: one `put` is one transaction: its records, index, recency and byte accounting become visible together or
  not at all, also after kill -9. A concurrent `get` sees all of it or none. Deleting goes leaf by leaf in bounded
  transactions, so that every state in between holds whole chains.
* Durability: what `put` reported STORED survives a crash of the process. What survives a power cut depends on the
  adapter's durability setting and is at least a consistent earlier state.
* Quota: usage never exceeds the quota, at any instant. Room is made by evicting the least recently used leaves that
  are neither pinned nor being read, never a parent before its children.
* Trouble (full disk or map, vanished volume, corruption, foreign format) is contained: reads answer MISS or None,
  writes answer with an outcome, each kind of fault is reported once by name and counted in `usage().faults`.
  A record that fails its checksum is quarantined with its descendants and is a miss from then on.
* Idempotence: putting a present record refreshes its recency and is STORED. Touching, unpinning or deleting what is
  absent does nothing.
* Arguments that make no sense (an identifier of another length than 32 bytes, a number out of range) are errors of the
  caller: ValueError, before anything is read or written, and never damage. The record types refuse them when they are
  made; hashes that are passed on their own are checked by the store (`check_ids`).
* After `close`: reads answer MISS or None, writes answer UNAVAILABLE; nothing raises.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from domain.ids import BlockHash, GroupIndex
from domain.record import BlockKey, Namespace, NamespaceInfo, Record, RecordKey, SnapshotKey
from domain.snapshot_place import SnapshotPlace


class Presence(Enum):
    """HIT: `get` finds it now, and after a crash. PENDING: `get` finds it now, while it waits to be stored or is being
    stored; only a store with a queue in front answers so. MISS: it does not."""

    HIT = "hit"
    PENDING = "pending"
    MISS = "miss"

    @property
    def is_readable(self) -> bool:
        return self is not Presence.MISS


class PutOutcome(Enum):
    """STORED: all records are in. The others store nothing of the batch: ORPHAN (a parent is absent), FULL (no room
    can be made, or the batch exceeds the quota), UNAVAILABLE (closed, read-only, volume gone, writes suspended)."""

    STORED = "stored"
    ORPHAN = "orphan"
    FULL = "full"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class NamespaceUsage:
    """`raw_bytes`: payload bytes before encoding; `stored_bytes`: what counts against the quota."""

    info: NamespaceInfo
    num_blocks: int
    num_snapshots: int
    raw_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """A consistent reading. `stored_bytes`: all that counts against the quota, at least the sum of the namespaces;
    what they share (half-filled index pages) is the difference. `namespaces`: those that hold records. `faults`: counts
    by kind since the store was opened; `evicted`: records since then.
    """

    quota_bytes: int
    stored_bytes: int
    namespaces: tuple[NamespaceUsage, ...]
    evicted: int = 0
    faults: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """`problems`: one line each, empty when sound. `num_records` examined."""

    num_records: int
    problems: tuple[str, ...]


class OpenFailure(Enum):
    """BUSY: another process writes to it. FOREIGN: not a store of ours. NEWER: of a later format. DAMAGED: cannot be
    read (and was opened read-only, so it was not replaced). VOLUME: missing, not permitted, full, or on a network."""

    BUSY = "busy"
    FOREIGN = "foreign"
    NEWER = "newer"
    DAMAGED = "damaged"
    VOLUME = "volume"


class StoreOpenError(Exception):
    """The store cannot be opened; the message is for people and names the directory."""

    def __init__(self, failure: OpenFailure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class CompactReport:
    """Bytes of the file before and after."""

    before_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class EraseReport:
    """What went: records, and what they counted against the quota. `problem`: why something may be left in the files
    all the same; empty when nothing is."""

    num_records: int
    num_bytes: int
    problem: str = ""


class BlockStore(Protocol):
    """See the module docstring for the contract that holds for every method."""

    def open_namespace(self, info: NamespaceInfo) -> None:
        """Say what people are shown of a namespace, before its first record or again later. Cheap: it is written with
        the next record of that namespace."""
        ...

    def lookup(self, keys: Sequence[BlockKey]) -> Sequence[Presence]:
        """Presence of blocks, in the order asked. Does not count as use."""
        ...

    def find_snapshots(self, namespace: Namespace, places: Sequence[SnapshotPlace]) -> Sequence[Sequence[SnapshotKey]]:
        """The snapshots of one prompt at each place, ascending by `num_partial`. Does not count as use.

        Costs a few probes a place (at most as many as a block has tokens), however many snapshots of other prompts hang
        there. For lookups.
        """
        ...

    def snapshots(
        self, namespace: Namespace, blocks: Sequence[BlockHash], limit: int | None = None
    ) -> Sequence[Sequence[SnapshotKey]]:
        """The snapshots hanging on each block (or on the namespace itself), ascending by `num_partial`, of each block
        the first `limit` or all. Costs as much as there are: for walking and explaining, not for lookups."""
        ...

    def children(
        self, namespace: Namespace, parent: BlockHash, limit: int
    ) -> Sequence[tuple[BlockKey, tuple[int, ...]]]:
        """Up to `limit` blocks that follow `parent`, with their token ids and without their state; for explaining."""
        ...

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        """Read records, None for a miss. `groups` limits each key to those state groups (None: all of them)."""
        ...

    def put(self, records: Sequence[Record]) -> PutOutcome:
        """Store a batch in one transaction. Parents are in the store already or earlier in the batch."""
        ...

    def touch(self, keys: Sequence[RecordKey]) -> None:
        """Note a use. Cheap: recency may be written later, with the next `put` or `flush`."""
        ...

    def pin(self, keys: Sequence[RecordKey]) -> None:
        """Keep from eviction while this process lives; counted, so every `pin` needs its `unpin`."""
        ...

    def unpin(self, keys: Sequence[RecordKey]) -> None: ...

    def delete(self, keys: Sequence[RecordKey]) -> int:
        """Remove records with everything that hangs on them; returns how many records went."""
        ...

    def delete_namespace(self, namespace: Namespace) -> int:
        """Remove everything of a namespace, in bounded transactions; returns how many records went."""
        ...

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> EraseReport:
        """Remove everything of the namespaces that `includes` says (None: of all), for good: no file of the store holds
        any of it afterwards, neither in freed pages nor in a database that was set aside. Pins do not hold it. What is
        put meanwhile may go as well. May take as long as copying what stays."""
        ...

    def usage(self) -> StoreUsage: ...

    def check_integrity(self, *, payloads: bool = False) -> IntegrityReport:
        """Recount everything against the accounting and check all links; with `payloads`, every checksum too."""
        ...

    def flush(self) -> None:
        """Write out what is held back (recency) and make everything STORED so far as durable as the setting allows."""
        ...

    def close(self) -> None:
        """Flush and release. Repeating it does nothing."""
        ...


class CompactableStore(BlockStore, Protocol):
    """A store whose file keeps freed space until asked to give it back."""

    def compact(self) -> CompactReport:
        """Rewrite the file without free space. Needs room for a second copy of what is live while it runs; writes wait,
        and reads miss while the files are swapped.
        Raises StoreOpenError(VOLUME) when that room is not there; the store is then as before."""
        ...


__all__ = (
    "BlockStore",
    "CompactReport",
    "CompactableStore",
    "EraseReport",
    "IntegrityReport",
    "NamespaceUsage",
    "OpenFailure",
    "Presence",
    "PutOutcome",
    "StoreOpenError",
    "StoreUsage",
)
