"""Records for tests of stores."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random

from application.ports.block_store import BlockStore
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.fingerprint import Fingerprint, tenant_salt
from domain.prefix.prompt_content import BlockGrid
from domain.prefix.record import (
    BlockKey,
    HostPayload,
    Namespace,
    NamespaceInfo,
    Provenance,
    Record,
    RecordKey,
    SnapshotKey,
    TensorSpec,
)

BLOCK_TOKENS = 16


def namespace_of(name: str) -> NamespaceInfo:
    """A toy's, without a salt or with one: `org/one?salt=alice`."""
    _, _, salt = name.partition("?salt=")
    weights = sha256(name.encode()).digest()
    tenant = tenant_salt("", salt)
    fingerprint = Fingerprint(weights, "toy", "bfloat16", BlockGrid(BLOCK_TOKENS, 4 * BLOCK_TOKENS), salt=tenant)
    return NamespaceInfo(fingerprint.namespace(), name, fingerprint.canonical_json())


def payload_of(seed: bytes, size_bytes: int, dtype: str = "bfloat16") -> HostPayload:
    """Bytes that follow from `seed`; roughly normal numbers, so that they compress like state does."""
    random = Random(seed)
    count = size_bytes // 2
    words = bytearray(random.randbytes(count * 2))
    # Few exponents: the high byte of a bfloat16 near one.
    words[1::2] = bytes(0x3E | (byte & 0x81) for byte in words[1::2])
    spec = TensorSpec(dtype, (count,)) if dtype == "bfloat16" else TensorSpec("uint8", (count * 2,))
    return HostPayload((spec,), (memoryview(bytes(words)),))


def block(parent: BlockHash, tokens: Sequence[int], info: NamespaceInfo, position: int, size_bytes: int) -> Record:
    digest = BlockHash(sha256(parent + b"".join(token.to_bytes(4, "little") for token in tokens)).digest())
    groups = {
        GroupIndex(0): payload_of(digest + b"0", size_bytes),
        GroupIndex(1): payload_of(digest + b"1", size_bytes // 2, "uint8"),
    }
    return Record(BlockKey(info.namespace, digest), parent, position, IdRow(tokens), groups, Provenance.PREFILL)


def chain(
    info: NamespaceInfo, length: int, *, seed: int = 0, size_bytes: int = 4096, after: Record | None = None
) -> list[Record]:
    """`length` blocks in a row, following `after` or the namespace itself."""
    random = Random(f"{info.model} {seed} {after.position if after else 0}")
    parent = BlockHash(info.namespace)
    position = 0
    if after is not None:
        assert isinstance(after.key, BlockKey)
        parent, position = after.key.hash, after.position
    records: list[Record] = []
    for _ in range(length):
        position += BLOCK_TOKENS
        tokens = [random.randrange(100_000) for _ in range(BLOCK_TOKENS)]
        records.append(block(parent, tokens, info, position, size_bytes))
        parent = BlockHash(records[-1].key.hash)  # type: ignore[union-attr]
    return records


def snapshot(after: Record | NamespaceInfo, tokens: Sequence[int], size_bytes: int = 4096) -> Record:
    """A snapshot `tokens` behind the end of a block, or inside the first block of a namespace."""
    if isinstance(after, NamespaceInfo):
        namespace, parent, position = after.namespace, BlockHash(after.namespace), 0
    else:
        assert isinstance(after.key, BlockKey)
        namespace, parent, position = after.key.namespace, after.key.hash, after.position
    digest = sha256(parent + b"".join(token.to_bytes(4, "little") for token in tokens)).digest()
    key = SnapshotKey(namespace, parent, len(tokens), digest)
    groups = {GroupIndex(2): payload_of(digest, size_bytes)}
    return Record(key, parent, position + len(tokens), IdRow(tokens), groups, Provenance.DECODE)


def keys_of(records: Iterable[Record]) -> list[RecordKey]:
    return [record.key for record in records]


def held(store: BlockStore, keys: Sequence[RecordKey]) -> list[bool]:
    """Which of them the store has."""
    there = {key for namespace in {key.namespace for key in keys} for key in store.keys(namespace)}
    return [key in there for key in keys]


def empty(store: BlockStore, info: NamespaceInfo) -> int:
    """Delete all that a namespace holds, as whoever walks it could; returns how many records went."""
    return store.delete(store.keys(info.namespace))


def same(stored: Record | None, record: Record) -> bool:
    """Whether what came back is bit for bit what was put."""
    if stored is None or set(stored.groups) != set(record.groups):
        return False
    plain = ("key", "parent", "position", "key_ids", "provenance")
    if any(getattr(stored, name) != getattr(record, name) for name in plain):
        return False
    return all(
        stored.groups[index].specs == payload.specs
        and [bytes(view) for view in stored.groups[index].buffers()] == [bytes(view) for view in payload.buffers()]
        for index, payload in record.groups.items()
    )


NAMESPACE = Namespace(sha256(b"sized state").digest())


@dataclass(frozen=True, slots=True)
class SizedPayload:
    """A StatePayload of so many bytes where computing happens."""

    size_bytes: int

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("uint8", (self.size_bytes,)),)

    def buffers(self) -> tuple[memoryview, ...]:
        raise AssertionError("nobody reads it")


def sized_record(number: int, size_bytes: int) -> Record:
    """A block of its own, like no other number's."""
    digest = BlockHash(sha256(number.to_bytes(8, "little")).digest())
    payload = {GroupIndex(0): SizedPayload(size_bytes)}
    return Record(BlockKey(NAMESPACE, digest), BlockHash(NAMESPACE), 1, IdRow((number,)), payload)
