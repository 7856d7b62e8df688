"""The shared store on a RESP server. docs/shared-cache.md describes the layout:

    cairn:1:FLEET:NAMESPACE:b:HASH           a block: label and first piece
    cairn:1:FLEET:NAMESPACE:s:DIGEST         a snapshot, likewise
    cairn:1:FLEET:NAMESPACE:p:HMAC:NUMBER    the further pieces of a record
    cairn:1:FLEET:NAMESPACE:t:HASH           a bit for each length of the snapshots after a block
    cairn:1:FLEET:NAMESPACE:i                the namespace's name, for clearing by model or salt

Every read is of a range, so that a value that somebody else wrote takes no more memory than one of ours. Eviction is
the server's: what is read becomes recent there.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from adapters.resp.connection import Command, RespConnection
from adapters.resp.value import LABEL_BYTES, PIECE_BYTES, fleet_of, hint_of, num_pieces, opened, sealed
from application.ports.block_store import StateCodec
from application.ports.shared_store import SharedHint, SharedPut, SharedRead
from domain.ids import BlockHash
from domain.prefix.record import (
    MAX_FINGERPRINT_BYTES,
    MAX_PARTIAL,
    BlockKey,
    Namespace,
    NamespaceInfo,
    Record,
    RecordKey,
    SnapshotKey,
)

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
        ca_file: str | None = None,
        timeout_s: float = 1.0,
    ) -> None:
        self._connection = RespConnection(url, password, ca_file, timeout_s)
        self._codec = codec
        self._secret = secret
        self._prefix = f"cairn:1:{fleet_of(secret)}"

    def find(self, keys: Sequence[RecordKey]) -> Sequence[SharedHint | None]:
        labels = self._connection.run([("GETRANGE", self._name(key), 0, LABEL_BYTES - 1) for key in keys])
        return [hint_of(key, label) for key, label in zip(keys, labels, strict=True)]

    def lengths(self, namespace: Namespace, parents: Sequence[BlockHash]) -> Sequence[frozenset[int]]:
        names = [self._named(namespace, "t", parent.hex()) for parent in parents]
        found: list[bytes] = self._connection.run([("GETRANGE", name, 0, _MAX_LENGTHS_BYTES - 1) for name in names])
        return [frozenset(_lengths(bits)) for bits in found]

    def read(self, hints: Sequence[SharedHint]) -> SharedRead:
        commands = [command for hint in hints for command in self._reads(hint)]
        answers: Iterator[bytes] = iter(self._connection.run(commands))
        records, bad, num_bytes = list[Record | None](), list[Command](), 0
        for hint in hints:
            pieces = [next(answers) for _ in range(num_pieces(hint))]
            num_bytes += sum(map(len, pieces))
            records.append(opened(hint, pieces, self._codec, self._secret))
            bad += [("UNLINK", self._name(hint.key))] if records[-1] is None and any(pieces) else []
        self._connection.run(bad)  # or nobody would write it again
        return SharedRead(records, len(bad), num_bytes)

    def put(self, info: NamespaceInfo, records: Sequence[Record]) -> SharedPut:
        found = self.find([record.key for record in records])
        absent = [record for record, hint in zip(records, found, strict=True) if hint is None]
        about = json.dumps({"model": info.model, "fingerprint": info.fingerprint}).encode()
        num_bytes = 0
        for record in absent:
            label, mac, pieces = sealed(record, self._codec, self._secret)
            further = [(self._piece(info.namespace, mac, number), piece) for number, piece in enumerate(pieces[1:], 1)]
            self._connection.run([("SET", name, piece) for name, piece in further])
            first = list[Command]([("SET", self._name(record.key), label + pieces[0])])
            if isinstance(record.key, SnapshotKey):
                tails = self._named(info.namespace, "t", record.key.block_hash.hex())
                first.append(("SETBIT", tails, record.key.num_partial, 1))
            self._connection.run(first)  # it can be found once all of it is there
            num_bytes += sum(map(len, pieces))
        self._connection.run([("SET", self._named(info.namespace, "i"), about)] if absent else [])
        return SharedPut(len(absent), len(records) - len(absent), num_bytes)

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> int:
        num_erased = 0
        for pattern in [f"{self._prefix}:*"] if includes is None else self._chosen(includes):
            for names in self._connection.names(pattern):
                self._connection.run([("UNLINK", name) for name in names])
                num_erased += sum(name.split(b":")[4] in (b"b", b"s") for name in names)
        return num_erased

    def ping(self) -> None:
        self._connection.run([("GETRANGE", f"{self._prefix}:ping", 0, 0)])

    def close(self) -> None:
        self._connection.close()

    def _chosen(self, includes: Callable[[NamespaceInfo], bool]) -> Iterator[str]:
        """Yields the patterns of the names of all that these namespaces hold."""
        for names in self._connection.names(f"{self._prefix}:*:i"):
            values = self._connection.run([("GETRANGE", name, 0, 2 * MAX_FINGERPRINT_BYTES) for name in names])
            for info in map(_info, names, values):
                if info is not None and includes(info):
                    yield f"{self._prefix}:{info.namespace.hex()}:*"

    def _reads(self, hint: SharedHint) -> list[Command]:
        first: Command = ("GETRANGE", self._name(hint.key), LABEL_BYTES, LABEL_BYTES + PIECE_BYTES - 1)
        further = [self._piece(hint.key.namespace, hint.tag, number) for number in range(1, num_pieces(hint))]
        return [first, *(("GETRANGE", name, 0, PIECE_BYTES - 1) for name in further)]

    def _name(self, key: RecordKey) -> str:
        kind, digest = ("b", key.hash) if isinstance(key, BlockKey) else ("s", key.digest)
        return self._named(key.namespace, kind, digest.hex())

    def _piece(self, namespace: Namespace, mac: bytes, number: int) -> str:
        return self._named(namespace, "p", f"{mac.hex()}:{number}")

    def _named(self, namespace: Namespace, *parts: str) -> str:
        return ":".join((self._prefix, namespace.hex(), *parts))


def _lengths(bits: bytes) -> Iterable[int]:
    return (8 * at + bit for at, byte in enumerate(bits) if byte for bit in range(8) if byte & (128 >> bit))


def _info(name: bytes, value: bytes) -> NamespaceInfo | None:
    """None for what the fleet did not write."""
    try:
        about, namespace = json.loads(bytes(value)), bytes.fromhex(name.decode().split(":")[3])
        return NamespaceInfo(Namespace(namespace), about["model"], about["fingerprint"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None
