"""The fixed-size values of the index, byte by byte (docs/store-format.md). Each ends in a check that covers its key.

Reading one that does not verify raises Damaged: the index is small, and what it says decides where everything lies.
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
_SPACE = Struct(">I")
_PARTIAL = Struct(">H")
_CLOCK = Struct(">Q")
_LINK_BYTES = _SPACE.size + 2 * ID_BYTES
_PIECE = Struct(">QI")
_QUARANTINED = Struct("<IQ")
_PROVENANCES = (Provenance.PREFILL, Provenance.DECODE)

STATE_KEY = b"state"
QUARANTINED = b"bad"
"""What keys in `sys` begin with that name records whose pages are left alone."""
ROW_BYTES = _ROW.size + _CHECK.size
PIECE_KEY_BYTES = _PIECE.size
BLOCK, SNAPSHOT = b"\x00", b"\x01"


def sealed(key: bytes, body: bytes) -> bytes:
    return body + _CHECK.pack(xxh3_64_intdigest(key + body))


def opened(key: bytes, value: bytes) -> bytes:
    """The body of a sealed value. Raises Damaged."""
    body = value[: -_CHECK.size]
    if value[-_CHECK.size :] != _CHECK.pack(xxh3_64_intdigest(key + body)):
        raise Damaged("an index entry does not match its checksum")
    return body


@dataclass(slots=True)
class State:
    """Counters of the whole store. The clock counts uses; ids are never given twice."""

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
class NamespaceRow:
    """A namespace and the sums over its records."""

    space: int
    model: str = ""
    fingerprint: str = ""
    num_blocks: int = 0
    num_snapshots: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        """Nothing is stored in it: the row goes."""
        return self.num_blocks + self.num_snapshots == 0

    def pack(self, namespace: Namespace) -> bytes:
        model, fingerprint = self.model.encode(), self.fingerprint.encode()
        counters = (self.space, self.num_blocks, self.num_snapshots, self.raw_bytes, self.stored_bytes)
        return sealed(namespace, _NAMESPACE.pack(*counters, len(model), len(fingerprint)) + model + fingerprint)

    @classmethod
    def unpack(cls, namespace: bytes, value: bytes) -> "NamespaceRow":
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
class Row:
    """Where a record lies and what it counts for."""

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
    def unpack(cls, key: bytes, value: bytes) -> "Row":
        try:
            id_, clock, position, raw, stream, charged, pieces, provenance, parent = _ROW.unpack(opened(key, value))
            return cls(id_, clock, position, raw, stream, charged, pieces, _PROVENANCES[int(provenance)], parent)
        except (error, IndexError):
            raise Damaged("a record entry cannot be read") from None

    def used_at(self, clock: int) -> "Row":
        return replace(self, clock=clock)


def record_key(space: int, key: RecordKey) -> bytes:
    if isinstance(key, BlockKey):
        return block_name(space, key.hash)
    return snapshot_prefix(space, key.block_hash, key.num_partial) + key.digest


def block_name(space: int, block: BlockHash) -> bytes:
    return _SPACE.pack(space) + BLOCK + block


def identity(key: RecordKey) -> bytes:
    """What payload checks cover of a key: all of it, and nothing that depends on this database."""
    return key.namespace + record_key(0, key)[_SPACE.size :]


def snapshot_prefix(space: int, block: BlockHash, num_partial: int | None = None) -> bytes:
    """What the keys of the snapshots on a block begin with; with `num_partial`, of those so many tokens after it."""
    prefix = _SPACE.pack(space) + SNAPSHOT + block
    return prefix if num_partial is None else prefix + _PARTIAL.pack(num_partial)


def space_prefix(space: int) -> bytes:
    """What the keys of all records of a namespace begin with."""
    return _SPACE.pack(space)


def child_prefix(space: int, parent: BlockHash) -> bytes:
    return _SPACE.pack(space) + parent


def linked(link: bytes) -> BlockHash:
    """The block of an entry of `kid`. Raises Damaged."""
    if len(link) != _LINK_BYTES:
        raise Damaged("a link has another size")
    return BlockHash(link[-ID_BYTES:])


def space_of(key: bytes) -> int:
    return int.from_bytes(key[:4], "big")


def is_block(key: bytes) -> bool:
    return key[4:5] == BLOCK


def parse_key(namespace: Namespace, key: bytes) -> RecordKey:
    """Inverse of `record_key`. Raises Damaged."""
    body = key[5:]
    if is_block(key) and len(body) == 32:
        return BlockKey(namespace, BlockHash(body))
    if key[4:5] == SNAPSHOT and len(body) == 66:
        return SnapshotKey(namespace, BlockHash(body[:32]), _PARTIAL.unpack(body[32:34])[0], body[34:])
    raise Damaged("a record key cannot be read")


def described(key: bytes) -> str:
    """A record for people."""
    return f"{'block' if is_block(key) else 'snapshot'} {key[5:37].hex()[:16]} of namespace {space_of(key)}"


def clock_key(clock: int) -> bytes:
    return _CLOCK.pack(clock)


def piece_key(record_id: int, piece: int) -> bytes:
    return _PIECE.pack(record_id, piece)


def quarantine_key(record_id: int) -> bytes:
    return QUARANTINED + _CLOCK.pack(record_id)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """What is left of a record that cannot be read from the disk: its key in `rec`, and what it takes in `dat`."""

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
