"""A record as the values that the server holds: a label, and a body in pieces (docs/shared-cache.md, layout).

The HMAC covers the record's identity and its body, so a value verifies under its own key only. The further pieces are
named by the HMAC: servers that compute one record with other bits write other pieces, and no reader gets a mixture.
"""

from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest, new
from struct import Struct, error

from application.ports.block_store import CodecError, StateCodec
from application.ports.shared_store import SharedHint
from domain.id_row import ID_BYTES as TOKEN_BYTES
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import BlockKey, Provenance, Record, RecordKey, StatePayload

LABEL_BYTES = 44
PIECE_BYTES = 4 << 20
"""The size of a value, but for the label: a larger one occupies the server for long, a smaller one costs calls."""

MAX_BODY_BYTES = 512 << 20
"""The size that a label may claim: what a reader would allocate."""

_MAGIC = b"CSR1"
_LABEL = Struct("<4s32sQ")
_START = Struct("<BQ32sI")
_COUNT = Struct("<H")
_GROUP = Struct("<HQ")
_PROVENANCES = (Provenance.PREFILL, Provenance.DECODE)


def fleet_of(secret: bytes) -> str:
    """Returns the part of the names of all records of a fleet, so that fleets do not meet."""
    return new(secret, b"cairn fleet", sha256).hexdigest()[:16]


def hint_of(key: RecordKey, label: bytes) -> SharedHint | None:
    """Returns what a label claims; None where this is no label, or claims an impossible size."""
    if len(label) != LABEL_BYTES:
        return None
    magic, mac, num_bytes = _LABEL.unpack(label)
    return SharedHint(key, num_bytes, mac) if magic == _MAGIC and 0 < num_bytes <= MAX_BODY_BYTES else None


def num_pieces(hint: SharedHint) -> int:
    return -(-hint.size_bytes // PIECE_BYTES)


def sealed(record: Record, codec: StateCodec, secret: bytes) -> tuple[bytes, bytes, list[bytes]]:
    """Returns a record's label, its HMAC, and the pieces of its body. Raises what the payload or the codec raises."""
    frames = {group: codec.encode(payload) for group, payload in record.groups.items()}
    spans = b"".join(_GROUP.pack(group, sum(view.nbytes for view in frame)) for group, frame in frames.items())
    start = _START.pack(_PROVENANCES.index(record.provenance), record.position, record.parent, len(record.key_ids))
    head = start + record.key_ids.to_bytes() + _COUNT.pack(len(frames)) + spans
    body = b"".join([head, *(view for frame in frames.values() for view in frame)])
    mac = _mac(record.key, [body], secret)
    return (
        _LABEL.pack(_MAGIC, mac, len(body)),
        mac,
        [body[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES)],
    )


def opened(hint: SharedHint, pieces: Sequence[bytes], codec: StateCodec, secret: bytes) -> Record | None:
    """Returns the record; None where the body is not authentic, or was written by the fleet and cannot be read here."""
    if not compare_digest(_mac(hint.key, pieces, secret), hint.tag):
        return None
    try:
        return _parsed(hint.key, memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces)), codec)
    except (error, ValueError, IndexError, CodecError):
        return None


def _mac(key: RecordKey, body: Sequence[bytes], secret: bytes) -> bytes:
    if isinstance(key, BlockKey):
        identity = key.namespace + b"b" + key.hash
    else:
        identity = key.namespace + b"s" + key.block_hash + _COUNT.pack(key.num_partial) + key.digest
    digest = new(secret, b"cairn record\0" + identity, sha256)
    for part in body:
        digest.update(part)
    return digest.digest()


def _parsed(key: RecordKey, body: memoryview, codec: StateCodec) -> Record:
    start: tuple[int, int, bytes, int] = _START.unpack_from(body)
    provenance, position, parent, num_tokens = start
    at = _START.size + TOKEN_BYTES * num_tokens
    key_ids = IdRow.of_bytes(body[_START.size : at])
    (num_groups,) = _COUNT.unpack_from(body, at)
    at += _COUNT.size
    spans = [_GROUP.unpack_from(body, at + index * _GROUP.size) for index in range(num_groups)]
    at += num_groups * _GROUP.size
    groups: dict[GroupIndex, StatePayload] = {}
    for group, length in spans:
        groups[GroupIndex(group)] = codec.decode(body[at : at + length])
        at += length
    if at != len(body):
        raise ValueError("it has another length than its directory says")
    return Record(key, BlockHash(parent), position, key_ids, groups, _PROVENANCES[provenance])
