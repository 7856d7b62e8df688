"""What the hot tier and the store keep: blocks in chains, and snapshots hanging on them.

    root ◄── block 0 ◄── block 1 ◄── block 2        parent pointers; the root is not a record
                 ▲           ▲
             snapshot    snapshot                    each at the block's end plus its own partial tokens

A record is a leaf when nothing points at it. Eviction takes leaves only, so a chain never has a hole and a snapshot
never outlives the blocks it needs.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NewType, TypeAlias

from domain.ids import BlockHash
from domain.payload import GroupPayloads

Namespace = NewType("Namespace", bytes)
"""32 bytes: the root hash of one fingerprint and tenant salt. Chains of different namespaces share nothing."""


class Provenance(Enum):
    """PREFILL: computed on the canonical grid. DECODE: written token by token, equal only to rounding."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, order=True)
class BlockKey:
    """One full block, by its chained hash."""

    namespace: Namespace
    hash: BlockHash


@dataclass(frozen=True, slots=True, order=True)
class SnapshotKey:
    """A snapshot `num_partial` (0 to block_size - 1) tokens after the end of the block `block_hash`.

    `block_hash` is the namespace itself when the snapshot lies inside the first block. `digest`: SHA-256 over the
    block hash and the partial block's token ids (uint32, little endian).
    """

    namespace: Namespace
    block_hash: BlockHash
    num_partial: int
    digest: bytes


RecordKey: TypeAlias = BlockKey | SnapshotKey


@dataclass(frozen=True, slots=True)
class Record:
    """One stored thing. `parent`: the block before (or the namespace itself). `token_ids`: this record's own tokens.

    `position`: tokens from the start of the prompt to the end of this record. `groups`: its state by state group.
    """

    key: RecordKey
    parent: BlockHash
    position: int
    token_ids: tuple[int, ...]
    groups: GroupPayloads
    provenance: Provenance = Provenance.PREFILL


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """What people are shown of a namespace. `fingerprint`: canonical JSON of everything that went into the root."""

    namespace: Namespace
    model: str
    fingerprint: str


__all__ = ("BlockKey", "Namespace", "NamespaceInfo", "Provenance", "Record", "RecordKey", "SnapshotKey")
