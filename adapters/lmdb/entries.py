"""Keys and values of the index, byte by byte (docs/store-format.md). Each value ends in a check that covers its key.

Reading a value that does not verify raises Damaged: the index is small, and everything else is found through it.
"""

from dataclasses import dataclass, replace
from struct import Struct, error

from xxhash import xxh3_64_intdigest

from adapters.lmdb.faults import Damaged
from domain.ids import BlockHash
from domain.prefix.record import ID_BYTES, BlockKey, Namespace, NamespaceInfo, Provenance, RecordKey, SnapshotKey

_CHECK = Struct("<Q")
_STATE = Struct("<QQI")
_ROW = Struct("<QQQQQQIB32s")
_NAMESPACE = Struct("<IQQQQHI")
_MARK = Struct("<Q")
_QUARANTINED = Struct("<IQ")
_SPACE = Struct(">I")
_PARTIAL = Struct(">H")
_NUMBER = Struct(">Q")
_PIECE = Struct(">QI")
_LINK_BYTES = _SPACE.size + 2 * ID_BYTES
_PROVENANCES = (Provenance.PREFILL, Provenance.DECODE)

STATE_KEY = b"state"
QUARANTINED = b"bad"
"""The prefix of keys in `sys` that name records whose pages are left alone."""
MARK = b"mark"
"""The prefix of keys in `sys` that say where the clock stood at a time."""
ROW_BYTES = _ROW.size + _CHECK.size
PIECE_KEY_BYTES = _PIECE.size
LINK_KEY_BYTES = _LINK_BYTES
BLOCK, SNAPSHOT = b"\x00", b"\x01"


def sealed(key: bytes, body: bytes) -> bytes:
    """Returns a value: the body and its check."""
    return body + _CHECK.pack(xxh3_64_intdigest(key + body))


def opened(key: bytes, value: bytes) -> bytes:
    """Returns the body of a sealed value. Raises Damaged."""
    body = value[: -_CHECK.size]
    if value[-_CHECK.size :] != _CHECK.pack(xxh3_64_intdigest(key + body)):
        raise Damaged("an index entry does not match its checksum")
    return body


@dataclass(slots=True)
class State:
    """Counters of the whole store. The clock counts uses; a record id is never given twice."""

    next_id: int = 1
    clock: int = 1
    next_space: int = 1

    def pack(self) -> bytes:
        return sealed(STATE_KEY, _STATE.pack(self.next_id, self.clock, self.next_space))

    @classmethod
    def unpack(cls, value: bytes) -> "State":
        try:
            return cls(*_STATE.unpack(opened(STATE_KEY, value)))
        except error:
            raise Damaged("the state of the store has another size") from None


@dataclass(slots=True)
class NamespaceEntry:
    """A namespace, by the number that its records' keys begin with, and the sums over its records."""

    space: int
    model: str = ""
    fingerprint: str = ""
    num_blocks: int = 0
    num_snapshots: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0

    def pack(self, namespace: Namespace) -> bytes:
        model, fingerprint = self.model.encode(), self.fingerprint.encode()
        counters = (self.space, self.num_blocks, self.num_snapshots, self.raw_bytes, self.stored_bytes)
        return sealed(namespace, _NAMESPACE.pack(*counters, len(model), len(fingerprint)) + model + fingerprint)

    @classmethod
    def unpack(cls, namespace: bytes, value: bytes) -> "NamespaceEntry":
        body = opened(namespace, value)
        if len(namespace) != ID_BYTES:
            raise Damaged("a namespace has a name of another length")
        try:
            space, blocks, snapshots, raw_bytes, stored_bytes, model, _ = _NAMESPACE.unpack_from(body)
            text = body[_NAMESPACE.size :]
            names = text[:model].decode(), text[model:].decode()
        except (error, UnicodeDecodeError):
            raise Damaged("a namespace entry cannot be read") from None
        return cls(space, *names, blocks, snapshots, raw_bytes, stored_bytes)

    def info(self, namespace: bytes) -> NamespaceInfo:
        return NamespaceInfo(Namespace(namespace), self.model, self.fingerprint)


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """The place of a record's payload, its links and what it is charged."""

    id: int
    clock: int
    position: int
    raw_bytes: int
    stream_bytes: int
    charged_bytes: int
    num_pieces: int
    provenance: Provenance
    parent: BlockHash

    def pack(self, key: bytes) -> bytes:
        sizes = (self.raw_bytes, self.stream_bytes, self.charged_bytes, self.num_pieces)
        provenance = _PROVENANCES.index(self.provenance)
        return sealed(key, _ROW.pack(self.id, self.clock, self.position, *sizes, provenance, self.parent))

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> "RecordEntry":
        try:
            id_, clock, position, raw, stream, charged, pieces, provenance, parent = _ROW.unpack(opened(key, value))
            return cls(id_, clock, position, raw, stream, charged, pieces, _PROVENANCES[int(provenance)], parent)
        except (error, IndexError):
            raise Damaged("a record entry cannot be read") from None

    def used_at(self, clock: int) -> "RecordEntry":
        return replace(self, clock=clock)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The rest of a record that cannot be read from the disk: its key in `rec`, and what it takes in `dat`."""

    name: bytes
    num_pieces: int
    num_pages: int

    def pack(self, key: bytes) -> bytes:
        return sealed(key, _QUARANTINED.pack(self.num_pieces, self.num_pages) + self.name)

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> "Quarantined":
        body = opened(key, value)
        try:
            return cls(body[_QUARANTINED.size :], *_QUARANTINED.unpack_from(body))
        except error:
            raise Damaged("a quarantined record cannot be read") from None


def pack_mark(at_s: int, clock: int) -> tuple[bytes, bytes]:
    """Returns key and value of a mark: the clock at a Unix time in seconds."""
    key = MARK + _NUMBER.pack(at_s)
    return key, sealed(key, _MARK.pack(clock))


def unpack_mark(key: bytes, value: bytes) -> tuple[int, int]:
    """Returns the Unix time in seconds and the clock. Raises Damaged."""
    try:
        return _NUMBER.unpack(key[len(MARK) :])[0], _MARK.unpack(opened(key, value))[0]
    except error:
        raise Damaged("a mark of time cannot be read") from None


def record_key(space: int, key: RecordKey) -> bytes:
    if isinstance(key, BlockKey):
        return block_name(space, key.hash)
    return snapshot_prefix(space, key.block_hash) + _PARTIAL.pack(key.num_partial) + key.digest


def parse_key(namespace: Namespace, key: bytes) -> RecordKey:
    """Inverse of `record_key`. Raises Damaged."""
    body = key[5:]
    if is_block(key) and len(body) == 32:
        return BlockKey(namespace, BlockHash(body))
    if key[4:5] == SNAPSHOT and len(body) == 66:
        return SnapshotKey(namespace, BlockHash(body[:32]), _PARTIAL.unpack(body[32:34])[0], body[34:])
    raise Damaged("a record key cannot be read")


def block_name(space: int, block: BlockHash) -> bytes:
    return _SPACE.pack(space) + BLOCK + block


def identity(key: RecordKey) -> bytes:
    """Returns the part of payload checks that names the record: it does not depend on this database."""
    return key.namespace + record_key(0, key)[_SPACE.size :]


def space_prefix(space: int) -> bytes:
    """Returns the prefix of the keys of all records of a namespace."""
    return _SPACE.pack(space)


def snapshot_prefix(space: int, block: BlockHash) -> bytes:
    """Returns the prefix of the keys of the snapshots on a block."""
    return _SPACE.pack(space) + SNAPSHOT + block


def child_prefix(space: int, parent: BlockHash) -> bytes:
    """Returns the prefix of the keys in `kid` of the blocks that follow a block."""
    return _SPACE.pack(space) + parent


def linked(link: bytes) -> BlockHash:
    """Returns the block of an entry of `kid`. Raises Damaged."""
    if len(link) != _LINK_BYTES:
        raise Damaged("a link has another size")
    return BlockHash(link[-ID_BYTES:])


def space_of(key: bytes) -> int:
    return int.from_bytes(key[:4], "big")


def is_block(key: bytes) -> bool:
    return key[4:5] == BLOCK


def described(key: bytes) -> str:
    """Returns the name of a record for messages."""
    return f"{'block' if is_block(key) else 'snapshot'} {key[5:37].hex()[:16]} of namespace {space_of(key)}"


def clock_key(clock: int) -> bytes:
    return _NUMBER.pack(clock)


def piece_key(record_id: int, piece: int) -> bytes:
    return _PIECE.pack(record_id, piece)


def quarantine_key(record_id: int) -> bytes:
    return QUARANTINED + _NUMBER.pack(record_id)
