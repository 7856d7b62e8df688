"""Records, which the hot tier and the store keep: blocks in chains, and snapshots that follow them.

    root ◄── block 0 ◄── block 1 ◄── block 2        parent pointers; the root is not a record
                 ▲           ▲
             snapshot    snapshot                    each at the block's end plus its own partial tokens

A record is a leaf when nothing points at it. Eviction takes leaves only, so a chain never has a hole and a snapshot
never outlives the blocks it needs.

Constructors check the length of identifiers (32 bytes) and the range of numbers, and raise ValueError: a malformed
record never reaches a store.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import prod
from typing import NewType, Protocol, TypeAlias

from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex

ITEM_BYTES: Mapping[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2,
    "uint32": 4, "int32": 4, "float32": 4, "uint64": 8, "int64": 8, "float64": 8, "complex64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """dtype (a key of ITEM_BYTES) and shape of one C-contiguous tensor; any dimension may be 0."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size_bytes", prod(self.shape) * ITEM_BYTES[self.dtype])


class StatePayload(Protocol):
    """Tensors of one state group, in layout order. Immutable; safe to read from any thread.

    An adapter may keep the data where it was computed (device memory): `buffers` exports it on first use.
    """

    @property
    def specs(self) -> tuple[TensorSpec, ...]: ...

    @property
    def size_bytes(self) -> int:
        """Raw bytes of all tensors."""
        ...

    def buffers(self) -> tuple[memoryview, ...]:
        """One flat ("B"), read-only, C-contiguous view a tensor, `specs[i].size_bytes` long each."""
        ...


@dataclass(frozen=True, slots=True)
class HostPayload:
    """A StatePayload whose bytes are in host memory."""

    specs: tuple[TensorSpec, ...]
    data: tuple[memoryview, ...]

    @property
    def size_bytes(self) -> int:
        return sum(spec.size_bytes for spec in self.specs)

    def buffers(self) -> tuple[memoryview, ...]:
        return self.data


GroupPayloads: TypeAlias = Mapping[GroupIndex, StatePayload]
"""The state of a block or a snapshot, by state group."""


Namespace = NewType("Namespace", bytes)
"""32 bytes: the root hash of one fingerprint and tenant salt. Chains of different namespaces share nothing."""


ID_BYTES = 32
"""Length of namespaces, block hashes and snapshot digests."""

MAX_POSITION = (1 << 64) - 1
MAX_GROUP = MAX_PARTIAL = (1 << 16) - 1
MAX_MODEL_BYTES = (1 << 16) - 1
MAX_FINGERPRINT_BYTES = 1 << 20


def check_ids(*ids: bytes) -> None:
    """Raises ValueError unless each is a namespace, a block hash or a digest by its length."""
    for id in ids:
        if len(id) != ID_BYTES:
            raise ValueError(f"identifier has {len(id)} bytes, but must have {ID_BYTES}")


class Provenance(Enum):
    """PREFILL: computed on the canonical grid. DECODE: written token by token, equal only to rounding."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, order=True)
class BlockKey:
    """One full block, by its chained hash."""

    namespace: Namespace
    hash: BlockHash

    def __post_init__(self) -> None:
        # Looked up by the hundred: two comparisons, and no call while they hold.
        if len(self.namespace) != ID_BYTES or len(self.hash) != ID_BYTES:
            check_ids(self.namespace, self.hash)


@dataclass(frozen=True, slots=True, order=True)
class SnapshotKey:
    """A snapshot `num_partial` (0 to block_size - 1) tokens after the end of the block `block_hash`.

    `block_hash` is the namespace itself when the snapshot lies inside the first block. `digest`: SHA-256 over the
    block hash, the partial block's key ids (uint32, little endian) and the digests of the images that they touch.
    """

    namespace: Namespace
    block_hash: BlockHash
    num_partial: int
    digest: bytes

    def __post_init__(self) -> None:
        check_ids(self.namespace, self.block_hash, self.digest)
        if not 0 <= self.num_partial <= MAX_PARTIAL:
            raise ValueError(f"num_partial is {self.num_partial}, but must be between 0 and {MAX_PARTIAL}")


RecordKey: TypeAlias = BlockKey | SnapshotKey


@dataclass(frozen=True, slots=True)
class Record:
    """A stored block or snapshot. `parent`: the preceding block, or the namespace itself. `key_ids`: this record's own.

    `position`: tokens from the start of the prompt to the end of this record. `groups`: its state by state group.
    """

    key: RecordKey
    parent: BlockHash
    position: int
    key_ids: IdRow
    groups: GroupPayloads
    provenance: Provenance = Provenance.PREFILL

    def __post_init__(self) -> None:
        check_ids(self.parent)
        if not 0 <= self.position <= MAX_POSITION:
            raise ValueError(f"position is {self.position}, but must be between 0 and {MAX_POSITION}")
        if self.groups and not (min(self.groups) >= 0 and max(self.groups) <= MAX_GROUP):
            raise ValueError(
                f"groups are {min(self.groups)} to {max(self.groups)}, but must be between 0 and {MAX_GROUP}"
            )
        if isinstance(self.key, SnapshotKey):
            if self.key.block_hash != self.parent:
                raise ValueError("parent must equal key.block_hash for a snapshot")
        elif self.key.hash in (self.parent, self.key.namespace):
            raise ValueError("a block's hash must differ from its parent and its namespace")

    @property
    def raw_bytes(self) -> int:
        """Bytes of state, before any encoding."""
        return sum(payload.size_bytes for payload in self.groups.values())

    @property
    def host_bytes(self) -> int:
        """Bytes of state in host memory; other payloads are in device memory."""
        return sum(payload.size_bytes for payload in self.groups.values() if isinstance(payload, HostPayload))

    def limited(self, groups: frozenset[GroupIndex] | None) -> "Record":
        """Returns a copy with these state groups only, as far as it has them; None: all."""
        if groups is None:
            return self
        return replace(self, groups={index: payload for index, payload in self.groups.items() if index in groups})


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """The name of a namespace in listings. `fingerprint`: canonical JSON of everything that went into the root."""

    namespace: Namespace
    model: str
    fingerprint: str

    def __post_init__(self) -> None:
        check_ids(self.namespace)
        if len(self.model.encode()) > MAX_MODEL_BYTES:
            raise ValueError(f"model exceeds {MAX_MODEL_BYTES} bytes")
        if len(self.fingerprint.encode()) > MAX_FINGERPRINT_BYTES:
            raise ValueError(f"fingerprint exceeds {MAX_FINGERPRINT_BYTES} bytes")
