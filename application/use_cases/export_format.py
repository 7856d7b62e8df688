"""The export file: a header, then records with parents first, then the number of records.

    file    := "CAIRNEX1", entry*, end
    entry   := length u32, JSON (UTF-8), body, BLAKE2b-128 over the JSON and the body
    end     := length 0, number of entries u64

An entry with `namespace_of` introduces a namespace; any other is a record, whose body is its codec frames one after
another. All integers are little endian. A file without its end was cut off.
"""

import json
from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import Any, BinaryIO

from application.ports.state_codec import StateCodec
from domain.ids import BlockHash, GroupIndex
from domain.record import BlockKey, Namespace, NamespaceInfo, Provenance, Record, SnapshotKey

MAGIC = b"CAIRNEX1"
_LENGTH = Struct("<I")
_COUNT = Struct("<Q")
_DIGEST_BYTES = 16
_MAX_HEADER_BYTES = 1 << 26
_MAX_BODY_BYTES = 1 << 40
_READ_BYTES = 1 << 24


class InvalidExport(Exception):
    """The file is not an export, or was cut off or changed."""


class ExportWriter:
    """Writes to a binary stream; `close` adds the end."""

    def __init__(self, stream: BinaryIO, codec: StateCodec) -> None:
        self._stream = stream
        self._codec = codec
        self._count = 0
        stream.write(MAGIC)

    def namespace(self, info: NamespaceInfo) -> None:
        names = {"namespace_of": info.model, "namespace": info.namespace.hex(), "fingerprint": info.fingerprint}
        self._entry(names, [])

    def record(self, record: Record) -> None:
        frames = {group: self._codec.encode(payload) for group, payload in record.groups.items()}
        key = record.key
        header: dict[str, Any] = {
            "namespace": key.namespace.hex(),
            "parent": record.parent.hex(),
            "position": record.position,
            "tokens": record.token_ids,
            "provenance": record.provenance.value,
            "groups": [[group, sum(view.nbytes for view in frame)] for group, frame in frames.items()],
        }
        if isinstance(key, BlockKey):
            header["block"] = key.hash.hex()
        else:
            header |= {"snapshot": key.digest.hex(), "partial": key.num_partial}
        self._entry(header, [view for frame in frames.values() for view in frame])

    def close(self) -> None:
        self._stream.write(_LENGTH.pack(0) + _COUNT.pack(self._count))

    def _entry(self, header: dict[str, Any], body: Sequence[memoryview]) -> None:
        text = json.dumps(header, separators=(",", ":")).encode()
        digest = blake2b(text, digest_size=_DIGEST_BYTES)
        self._stream.write(_LENGTH.pack(len(text)) + text)
        for view in body:
            digest.update(view)
            self._stream.write(view)
        self._stream.write(digest.digest())
        self._count += 1


class ExportReader:
    """Reads what ExportWriter wrote; every method raises InvalidExport on anything else."""

    def __init__(self, stream: BinaryIO, codec: StateCodec) -> None:
        self._stream = stream
        self._codec = codec
        self._count = 0
        if stream.read(len(MAGIC)) != MAGIC:
            raise InvalidExport("this is not a cairn export")

    def next(self) -> NamespaceInfo | Record | None:
        """The next entry, or None at the end."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if not length:
            (count,) = _COUNT.unpack(self._exactly(_COUNT.size))
            if count != self._count:
                raise InvalidExport(f"the export has {self._count} entries of {count}")
            return None
        if length > _MAX_HEADER_BYTES:
            raise InvalidExport("an entry of the export claims an impossible size")
        text = self._exactly(length)
        try:
            entry = self._parse(text)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidExport("an entry of the export cannot be read") from None
        self._count += 1
        return entry

    def _parse(self, text: bytes) -> NamespaceInfo | Record:
        header: dict[str, Any] = json.loads(text)
        lengths = [int(length) for _, length in header.get("groups", [])]
        if min(lengths, default=0) < 0 or sum(lengths) > _MAX_BODY_BYTES:
            raise InvalidExport("an entry of the export claims an impossible size")
        frames = [self._exactly(length) for length in lengths]
        digest = blake2b(text, digest_size=_DIGEST_BYTES)
        for frame in frames:
            digest.update(frame)
        if self._exactly(_DIGEST_BYTES) != digest.digest():
            raise InvalidExport("an entry of the export does not match its checksum")
        namespace = Namespace(bytes.fromhex(header["namespace"]))
        if "namespace_of" in header:
            return NamespaceInfo(namespace, header["namespace_of"], header["fingerprint"])
        parent = BlockHash(bytes.fromhex(header["parent"]))
        key = (
            BlockKey(namespace, BlockHash(bytes.fromhex(header["block"])))
            if "block" in header
            else SnapshotKey(namespace, parent, int(header["partial"]), bytes.fromhex(header["snapshot"]))
        )
        groups = {
            GroupIndex(int(group)): self._codec.decode([memoryview(frame)])
            for (group, _), frame in zip(header["groups"], frames, strict=True)
        }
        tokens = tuple(int(token) for token in header["tokens"])
        return Record(key, parent, int(header["position"]), tokens, groups, Provenance(header["provenance"]))

    def _exactly(self, size_bytes: int) -> bytes:
        parts: list[bytes] = []
        while size_bytes:
            # In steps, so that a false length costs no more memory than the file has bytes.
            part = self._stream.read(min(size_bytes, _READ_BYTES))
            if not part:
                raise InvalidExport("the export is cut off")
            parts.append(part)
            size_bytes -= len(part)
        return b"".join(parts)


__all__ = ("ExportReader", "ExportWriter", "InvalidExport")
