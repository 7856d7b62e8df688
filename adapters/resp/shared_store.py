"""The shared store on a RESP server. docs/fleet.md describes the layout:

    cairn:1:FLEET:NAMESPACE:b:HASH           a block: label and first piece of the body
    cairn:1:FLEET:NAMESPACE:s:DIGEST         a snapshot, likewise
    cairn:1:FLEET:NAMESPACE:p:HMAC:NUMBER    the further pieces of a record
    cairn:1:FLEET:NAMESPACE:t:HASH           a bit for each length of the snapshots after a block
    cairn:1:FLEET:NAMESPACE:i                the namespace's name, for clearing by model or salt

The HMAC covers the record's name and body, so a value verifies under its own name only. The further pieces are named by
the HMAC: servers that compute one record with other bits write other pieces, and no reader gets a mixture.

Every read is of a range, so that a value of another writer takes no more memory than one of ours. Eviction is
the server's: what is read becomes recent there.
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from hmac import compare_digest, new
from struct import Struct, error

from adapters.resp.connection import CALL_S, Command, RespConnection
from application.ports.block_store import CodecError, EncodedPayload, StateCodec
from application.ports.shared_store import SharedHint, SharedPut, SharedRead
from domain.id_row import ID_BYTES as TOKEN_BYTES
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import (
    MAX_FINGERPRINT_BYTES,
    MAX_PARTIAL,
    BlockKey,
    Namespace,
    NamespaceInfo,
    Provenance,
    Record,
    RecordKey,
    SnapshotKey,
    StatePayload,
)

PIECE_BYTES = 4 << 20
"""The size of a value, but for the label: a larger one occupies the server for long, a smaller one costs calls."""

MAX_BODY_BYTES = 512 << 20
"""The size that a label may claim: what a reader would allocate."""

_LABEL = Struct("<4s32sQ")
LABEL_BYTES = _LABEL.size
_MAGIC = b"CSR1"
_START = Struct("<BQ32sI")
_COUNT = Struct("<H")
_GROUP = Struct("<HQ")
_PROVENANCES = (Provenance.PREFILL, Provenance.DECODE)
_MAX_LENGTHS_BYTES = (MAX_PARTIAL + 1) // 8


class RespSharedStore:
    """A SharedStore. `secret`: the fleet's; empty on loopback without one, where values are checked against accidents
    only. Connects on first use; other arguments as in RespConnection."""

    def __init__(
        self,
        url: str,
        codec: StateCodec,
        secret: bytes = b"",
        password: str | None = None,
        timeout_s: float = 1.0,
        nodes: Collection[str] = (),
        call_s: float = CALL_S,
    ) -> None:
        self._connection = RespConnection(url, password, timeout_s, nodes, call_s)
        self._codec = codec
        self._mac = new(secret, b"cairn record\0", sha256)
        self.prefix = f"cairn:1:{new(secret, b'cairn fleet', sha256).hexdigest()[:16]}"

    def find(self, keys: Sequence[RecordKey]) -> Sequence[SharedHint | None]:
        labels = self._connection.run([("GETRANGE", self._name(key), 0, LABEL_BYTES - 1) for key in keys])
        return [_hint(key, label) for key, label in zip(keys, labels, strict=True)]

    def lengths(self, namespace: Namespace, parents: Sequence[BlockHash]) -> Sequence[frozenset[int]]:
        names = [self._named(namespace, "t", parent.hex()) for parent in parents]
        found: list[bytes] = self._connection.run([("GETRANGE", name, 0, _MAX_LENGTHS_BYTES - 1) for name in names])
        return [
            frozenset(8 * at + bit for at, byte in enumerate(bits) if byte for bit in range(8) if byte & (128 >> bit))
            for bits in found
        ]

    def read(self, hints: Sequence[SharedHint]) -> SharedRead:
        commands = [command for hint in hints for command in self._reads(hint)]
        answers: Iterator[bytes] = iter(self._connection.run(commands))
        records, encoded = list[Record | None](), list[Record | None]()
        bad, num_bytes = list[Command](), 0
        for hint in hints:
            pieces = [next(answers) for _ in range(_num_pieces(hint))]
            num_bytes += sum(map(len, pieces))
            record, arrived = self._opened(hint, pieces)
            records.append(record)
            encoded.append(arrived)
            bad += [("UNLINK", self._name(hint.key))] if record is None and any(pieces) else []
        self._connection.run(bad)  # or it would never be written again
        return SharedRead(records, encoded, len(bad), num_bytes)

    def put(self, info: NamespaceInfo, records: Sequence[Record]) -> SharedPut:
        found = self.find([record.key for record in records])
        absent = [record for record, hint in zip(records, found, strict=True) if hint is None]
        about = json.dumps({"model": info.model, "fingerprint": info.fingerprint}).encode()
        num_bytes = 0
        for record in absent:
            name, body = self._name(record.key), _body(record, self._codec)
            mac = self._mac_of(name, [body])
            pieces = [body[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES)]
            further = [self._piece(info.namespace, mac, number) for number in range(1, len(pieces))]
            self._connection.run([("SET", *one) for one in zip(further, pieces[1:], strict=True)])
            first = list[Command]([("SET", name, _LABEL.pack(_MAGIC, mac, len(body)) + pieces[0])])
            if isinstance(record.key, SnapshotKey):
                tails = self._named(info.namespace, "t", record.key.block_hash.hex())
                first.append(("SETBIT", tails, record.key.num_partial, 1))
            self._connection.run(first)  # it can be found once all of it is there
            num_bytes += len(body)
        self._connection.run([("SET", self._named(info.namespace, "i"), about)] if absent else [])
        return SharedPut(len(absent), len(records) - len(absent), num_bytes)

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> int:
        num_erased = 0
        for pattern in [f"{self.prefix}:*"] if includes is None else self._chosen(includes):
            names = self._connection.names(pattern)
            self._connection.run([("UNLINK", name) for name in names])
            num_erased += sum(name.split(b":")[4:5] in ([b"b"], [b"s"]) for name in names)
        return num_erased

    def ping(self) -> None:
        self._connection.run([("GETRANGE", f"{self.prefix}:ping", 0, 0)])

    def close(self) -> None:
        self._connection.close()

    def _chosen(self, includes: Callable[[NamespaceInfo], bool]) -> Iterator[str]:
        """Yields the patterns of the names of all that these namespaces hold."""
        names = self._connection.names(f"{self.prefix}:*:i")
        values = self._connection.run([("GETRANGE", name, 0, 2 * MAX_FINGERPRINT_BYTES) for name in names])
        for info in map(_info, names, values):
            if info is not None and includes(info):
                yield f"{self.prefix}:{info.namespace.hex()}:*"

    def _reads(self, hint: SharedHint) -> list[Command]:
        first: Command = ("GETRANGE", self._name(hint.key), LABEL_BYTES, LABEL_BYTES + PIECE_BYTES - 1)
        further = [self._piece(hint.key.namespace, hint.tag, number) for number in range(1, _num_pieces(hint))]
        return [first, *(("GETRANGE", name, 0, PIECE_BYTES - 1) for name in further)]

    def _opened(self, hint: SharedHint, pieces: Sequence[bytes]) -> tuple[Record, Record] | tuple[None, None]:
        """Returns the record, and as it arrived; None where the body is not authentic, or was written by the fleet and
        cannot be read here."""
        if not compare_digest(self._mac_of(self._name(hint.key), pieces), hint.tag):
            return None, None
        try:
            return _parsed(hint.key, memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces)), self._codec)
        except (error, ValueError, IndexError, CodecError):
            return None, None

    def _mac_of(self, name: str, body: Sequence[bytes]) -> bytes:
        digest = self._mac.copy()
        for part in (name.encode(), *body):
            digest.update(part)
        return digest.digest()

    def _name(self, key: RecordKey) -> str:
        kind, digest = ("b", key.hash) if isinstance(key, BlockKey) else ("s", key.digest)
        return self._named(key.namespace, kind, digest.hex())

    def _piece(self, namespace: Namespace, mac: bytes, number: int) -> str:
        return self._named(namespace, "p", f"{mac.hex()}:{number}")

    def _named(self, namespace: Namespace, *parts: str) -> str:
        return ":".join((self.prefix, namespace.hex(), *parts))


def _hint(key: RecordKey, label: bytes) -> SharedHint | None:
    """Returns what a label claims; None where this is no label, or claims an impossible size."""
    if len(label) != LABEL_BYTES:
        return None
    magic, mac, num_bytes = _LABEL.unpack(label)
    return SharedHint(key, num_bytes, mac) if magic == _MAGIC and 0 < num_bytes <= MAX_BODY_BYTES else None


def _num_pieces(hint: SharedHint) -> int:
    return -(-hint.size_bytes // PIECE_BYTES)


def _body(record: Record, codec: StateCodec) -> bytes:
    """Returns a record's body. Raises what the payload or the codec raises."""
    frames = {group: codec.encode(payload) for group, payload in record.groups.items()}
    spans = b"".join(_GROUP.pack(group, sum(view.nbytes for view in frame)) for group, frame in frames.items())
    start = _START.pack(_PROVENANCES.index(record.provenance), record.position, record.parent, len(record.key_ids))
    head = start + record.key_ids.to_bytes() + _COUNT.pack(len(frames)) + spans
    return b"".join([head, *(view for frame in frames.values() for view in frame)])


def _parsed(key: RecordKey, body: memoryview, codec: StateCodec) -> tuple[Record, Record]:
    """Returns the record decoded, and encoded."""
    start: tuple[int, int, bytes, int] = _START.unpack_from(body)
    provenance, position, parent, num_tokens = start
    at = _START.size + TOKEN_BYTES * num_tokens
    key_ids = IdRow.of_bytes(body[_START.size : at])
    (num_groups,) = _COUNT.unpack_from(body, at)
    at += _COUNT.size
    spans = [_GROUP.unpack_from(body, at + index * _GROUP.size) for index in range(num_groups)]
    at += num_groups * _GROUP.size
    decoded, encoded = dict[GroupIndex, StatePayload](), dict[GroupIndex, StatePayload]()
    for group, length in spans:
        frame = body[at : at + length]
        payload = decoded[GroupIndex(group)] = codec.decode(frame)
        encoded[GroupIndex(group)] = EncodedPayload(payload.specs, frame, codec.decode)
        at += length
    if at != len(body):
        raise ValueError("it has another length than its directory says")
    whole = Record(key, BlockHash(parent), position, key_ids, decoded, _PROVENANCES[provenance])
    return whole, replace(whole, groups=encoded)


def _info(name: bytes, value: bytes) -> NamespaceInfo | None:
    """None for what the fleet did not write."""
    try:
        about, namespace = json.loads(bytes(value)), bytes.fromhex(name.decode().split(":")[3])
        return NamespaceInfo(Namespace(namespace), str(about["model"]), str(about["fingerprint"]))
    except (RecursionError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None
