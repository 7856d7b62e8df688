"""A local store: records kept on this machine within a quota. Read, written, and administered.

Who only reads takes a RecordReader, who only writes a RecordWriter; their contracts hold here. What only a local store
has is StoreAdministration: it can be listed, measured, checked, emptied and made smaller.

Contract, in addition
* Quota: usage never exceeds the quota, at any instant. Room is made by evicting the least recently used leaves that
  are not being read, never a parent before its children.
* Trouble (full disk or map, vanished volume, corruption, foreign format) is contained: each kind of fault is reported
  once by name and counted in `usage().faults`. A record that fails its checksum is quarantined with everything that
  follows it and is a miss from then on.
* After `close`: reads answer MISS or None, writes answer UNAVAILABLE; nothing raises.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from application.ports.record_reader import RecordReader
from application.ports.record_writer import RecordWriter
from domain.record import Namespace, NamespaceInfo, RecordKey


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


Advance: TypeAlias = Callable[[int], None]
"""Told how many more bytes long work has done. Any thread, one at a time. An interrupt in it ends the work."""


def nobody_looks(_num_bytes: int) -> None:
    """An Advance."""


NoteGone: TypeAlias = Callable[[Sequence[RecordKey] | None], object]
"""Called with the keys of records that left the store (evicted, deleted, quarantined), once that is committed; with
None when anything may be different (erased, damaged, opened anew), so that `keys` has to be read again. Called by the
thread that removed them: it must return at once and not call the store."""


class StoreAdministration(Protocol):
    """See the module docstring. Any thread."""

    def keys(self, namespace: Namespace) -> Sequence[RecordKey]:
        """Keys of all records of a namespace at one moment, in no order: what an index of it begins with. Reads no
        state: microseconds a record."""
        ...

    def watch(self, note_gone: NoteGone) -> None:
        """Call `note_gone` from now on with what leaves the store; it replaces the one before. What `put` stores its
        caller knows."""
        ...

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> EraseReport:
        """Remove everything of the namespaces that `includes` says (None: of all), for good: no file of the store holds
        any of it afterwards, nor do freed pages. What is put meanwhile may go as well. May take as long as copying what
        stays."""
        ...

    def usage(self) -> StoreUsage: ...

    def check_integrity(self, *, payloads: bool = False, advance: Advance = nobody_looks) -> IntegrityReport:
        """Recount everything against the accounting and check all links; with `payloads`, every checksum too. The bytes
        `advance` is told of are those of `usage().stored_bytes`, about."""
        ...

    def compact(self, advance: Advance = nobody_looks) -> CompactReport:
        """Rewrite the store's file without free space. Needs room for a second copy of what is live while it runs;
        writes wait, and reads miss while the files are swapped. The bytes `advance` is told of are those of
        `usage().stored_bytes`, about. Interrupted (KeyboardInterrupt), the store is as before.
        Raises StoreOpenError(VOLUME) when that room is not there; the store is then as before."""
        ...

    def close(self) -> None:
        """Flush and release. Repeating it does nothing."""
        ...


class BlockStore(RecordReader, RecordWriter, StoreAdministration, Protocol):
    """All of a local store."""


__all__ = (
    "Advance",
    "BlockStore",
    "CompactReport",
    "EraseReport",
    "IntegrityReport",
    "NamespaceUsage",
    "NoteGone",
    "OpenFailure",
    "StoreAdministration",
    "StoreOpenError",
    "StoreUsage",
    "nobody_looks",
)
