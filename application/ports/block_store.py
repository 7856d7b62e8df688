"""A local store: records on this machine within a quota. The prefix index (`domain/prefix/index`) knows which records
it has.

Contract
* Threading: every method is safe from any thread and blocks its caller at most for its own I/O. Payloads are decoded
  inside `get` and encoded inside `put`, or from `prepare` on, with the GIL released where the library allows.
* Truth: a read returns the bytes that were put, bit for bit, or a miss. A record that fails its checksum is a miss, and
  so is everything that cannot be read now (volume gone, foreign format, closed): nothing raises.
* Atomicity: one `put` is one transaction: its records, index, recency and byte accounting become visible together or
  not at all, also after kill -9. A concurrent `get` sees all of it or none. Deleting goes leaf by leaf in bounded
  transactions, so that every state in between holds whole chains.
* Durability: what `put` reported STORED in a store on disk survives a crash of the process and a power cut.
* Idempotence: putting a present record refreshes its recency and is STORED. Deleting what is absent does nothing.
* Quota: usage never exceeds the quota, at any instant. Room is made by evicting the least recently used leaves that
  are not being read, never a parent before its children.
* Trouble (full disk or map, vanished volume, corruption, foreign format) is contained: writing answers with an outcome,
  each kind of fault is reported once by name and counted in `usage().faults`. A record that fails its checksum is
  quarantined with everything that follows it and is a miss from then on.
* Arguments that make no sense (an identifier of another length than 32 bytes) are errors of the caller: ValueError,
  before anything is read.
* After `close`: reads answer None, writes answer UNAVAILABLE; nothing raises.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import Namespace, NamespaceInfo, Record, RecordKey, StatePayload, TensorSpec


class CodecError(Exception):
    """The bytes are not a frame this codec can decode (foreign, newer, truncated)."""


@dataclass(frozen=True, slots=True)
class EncodedPayload:
    """A StatePayload as the frame that it arrived in, which a store keeps as it is. `buffers` decodes it."""

    specs: tuple[TensorSpec, ...]
    frame: memoryview
    decode: Callable[[memoryview], StatePayload]

    @property
    def size_bytes(self) -> int:
        return sum(spec.size_bytes for spec in self.specs)

    def buffers(self) -> tuple[memoryview, ...]:
        return self.decode(self.frame).buffers()


class StateCodec(Protocol):
    """State payloads to versioned, self-describing frames and back, losslessly: every (dtype, shape, content) returns
    bit for bit.

    Any thread. `decode` raises CodecError on anything it did not write itself; checksums are the store's work, so a
    codec may trust bytes that passed one, and must still never read out of bounds."""

    def encode(self, payload: StatePayload) -> Sequence[memoryview]:
        """The frame as consecutive buffers, not joined, so that the writer copies once. Of an EncodedPayload, which
        the same codec has decoded before, its own frame."""
        ...

    def decode(self, frame: memoryview) -> StatePayload:
        """Inverse of `encode`, on the same bytes in one buffer. The result does not refer to it."""
        ...


class PutOutcome(Enum):
    """STORED: all records are in. The others store nothing of the batch: ORPHAN (a parent is absent), FULL (no room
    can be made, or the batch exceeds the quota), UNAVAILABLE (closed, read-only, volume gone, writes suspended)."""

    STORED = "stored"
    ORPHAN = "orphan"
    FULL = "full"
    UNAVAILABLE = "unavailable"


PreparedPut: TypeAlias = Callable[[], PutOutcome]
"""Stores what was prepared, as `put` does. Called once, or never, by any thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceUsage:
    """`raw_bytes`: payload bytes before encoding; `stored_bytes`: what counts against the quota."""

    info: NamespaceInfo
    num_blocks: int
    num_snapshots: int
    raw_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """BUSY: another process writes to it. FOREIGN: not a store of Cairn's. NEWER: of a later format. DAMAGED: cannot be
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
    """The records that were removed, and the bytes that they counted against the quota. `problem`: the reason for which
    the files may still hold some of it; empty for none."""

    num_records: int
    num_bytes: int
    problem: str = ""


Advance: TypeAlias = Callable[[int], None]
"""Called with the bytes that long work has processed since the last call. Any thread, one at a time. An interrupt in
it ends the work."""


def no_progress(_num_bytes: int) -> None:
    """An Advance."""


NoteGone: TypeAlias = Callable[[Sequence[RecordKey] | None], object]
"""Called with the keys of records that left the store (evicted, deleted, quarantined), once that is committed; with
None when anything may be different (erased, damaged, opened anew), so that `keys` has to be read again. Called by the
thread that removed them: it must return at once and not call the store."""


class StoreAdministration(Protocol):
    """The part of a store that lists, measures, checks, empties and compacts it. Any thread."""

    def keys(self, namespace: Namespace) -> Sequence[RecordKey]:
        """Returns the keys of all records of a namespace at one moment, in no order, to build an index from. Reads no
        state: microseconds a record."""
        ...

    def watch(self, note_gone: NoteGone) -> None:
        """Registers `note_gone`, which is called with the records that leave the store; it replaces the previous
        callback. Records that `put` stores are not reported."""
        ...

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> EraseReport:
        """Removes everything of the namespaces that `includes` accepts (None: of all) for good: afterwards no file of
        the store holds any of it, nor do freed pages. Records that are put during the call may be removed as well. May
        take as long as copying the remaining records."""
        ...

    def usage(self) -> StoreUsage: ...

    def check_integrity(self, *, payloads: bool = False, advance: Advance = no_progress) -> IntegrityReport:
        """Recounts everything against the accounting and checks all links; with `payloads`, every checksum too. The
        bytes that `advance` counts are those of `usage().stored_bytes`, about."""
        ...

    def compact(self, advance: Advance = no_progress) -> CompactReport:
        """Rewrites the store's file without free space. Needs disk space for a second copy of the live records while it
        runs; writes wait, and reads miss while the files are swapped. The bytes that `advance` counts are those of
        `usage().stored_bytes`, about. Interrupted (KeyboardInterrupt), the store is as before. Raises
        StoreOpenError(VOLUME) when the disk space is missing; the store is then as before."""
        ...

    def close(self) -> None:
        """Flushes and closes the store. Idempotent."""
        ...


class BlockStore(StoreAdministration, Protocol):
    """A local store: its records and their administration."""

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        """Returns records, None for a miss. `groups` limits each key to those state groups (None: all of them)."""
        ...

    def touch(self, keys: Sequence[RecordKey]) -> None:
        """Notes a use of the records that are present. Cheap: recency may be written later, with the next write."""
        ...

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> Sequence[IdRow]:
        """Returns token ids of up to `limit` blocks and up to `limit` snapshots that follow a block (or the namespace's
        root), for explaining where a prompt leaves what is stored. Does not count as use."""
        ...

    def open_namespace(self, info: NamespaceInfo) -> None:
        """Sets the name of a namespace for listings, before its first record or again later. Cheap: the name is written
        with the next record of that namespace."""
        ...

    def put(self, records: Sequence[Record]) -> PutOutcome:
        """Stores a batch in one transaction. Parents are in the store already or earlier in the batch."""
        ...

    def prepare(self, records: Sequence[Record]) -> PreparedPut:
        """Begins to put a batch on threads of the store: the slow work that needs no transaction. One batch is prepared
        while another one, which may hold its parents, is written. Returns at once and never raises.
        """
        ...

    def delete(self, keys: Sequence[RecordKey]) -> int:
        """Removes records with everything that follows them; returns the number of removed records."""
        ...

    def flush(self) -> None:
        """Writes deferred recency and makes everything STORED so far durable."""
        ...
