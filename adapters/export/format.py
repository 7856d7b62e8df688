"""The export file: a beginning, then records with parents first, then the number of entries.

    file    := "CAIRNEX2", key id (8 bytes; zeros: not signed), entry*, end
    entry   := length u32, JSON (UTF-8), codec frames one after another, seal
    end     := length 0, number of entries u64, seal
    seal    := digest (32 bytes), and in a signed export a mark (32 bytes); see seal

An entry with `namespace_of` introduces a namespace; any other is a record. All integers are little endian. A file
without its end was cut off. An entry is believed, decoded and given out only once its seal was checked.
"""

import json
from collections.abc import Sequence
from struct import Struct
from typing import Any, BinaryIO, Protocol

from adapters.export.entry import MAX_RATIO, EntryChecks, GroupSize, RecordHeader
from adapters.export.fields import Fields
from adapters.export.seal import (
    KEY_ID_BYTES,
    SEAL_BYTES,
    UNSIGNED,
    ExportKey,
    Seals,
    matches,
)
from application.ports.record_transfer import InvalidExport
from application.ports.state_codec import CodecError, StateCodec
from domain.ids import GroupIndex
from domain.payload import StatePayload
from domain.record import BlockKey, NamespaceInfo, Record

MAGIC = b"CAIRNEX2"
_OLD_MAGIC = b"CAIRNEX1"
_LENGTH = Struct("<I")
_COUNT = Struct("<Q")
_MAX_HEADER_BYTES = 1 << 21
_MAX_DIMENSION = (1 << 31) - 1
_READ_BYTES = 1 << 24


class ExportWriter:
    """A RecordSink: writes to a binary stream, and with `close` its end.

    `plain`: encodes what `codec` would shrink beyond belief.
    """

    def __init__(self, stream: BinaryIO, codec: StateCodec, plain: StateCodec, key: ExportKey | None = None) -> None:
        self._stream = stream
        self._codec = codec
        self._plain = plain
        beginning = MAGIC + (key.id if key is not None else UNSIGNED)
        self._seals = Seals(beginning, key)
        self._count = 0
        stream.write(beginning)

    def namespace(self, info: NamespaceInfo) -> None:
        names = {"namespace_of": info.model, "namespace": info.namespace.hex(), "fingerprint": info.fingerprint}
        self._entry(names, [])

    def record(self, record: Record) -> None:
        frames = {group: self._frame(record.groups[group]) for group in sorted(record.groups)}
        key = record.key
        header: dict[str, Any] = {
            "namespace": key.namespace.hex(),
            "parent": record.parent.hex(),
            "position": record.position,
            "tokens": list(record.key_ids),
            "provenance": record.provenance.value,
            "groups": [
                [group, sum(view.nbytes for view in frame), record.groups[group].size_bytes]
                for group, frame in frames.items()
            ],
        }
        if isinstance(key, BlockKey):
            header["block"] = key.hash.hex()
        else:
            header |= {"snapshot": key.digest.hex(), "partial": key.num_partial}
        self._entry(header, [view for frame in frames.values() for view in frame])

    def close(self) -> None:
        self._sealed([_LENGTH.pack(0), _COUNT.pack(self._count)])

    def _frame(self, payload: StatePayload) -> Sequence[memoryview]:
        frame = self._codec.encode(payload)
        is_believable = payload.size_bytes <= MAX_RATIO * sum(view.nbytes for view in frame)
        return frame if is_believable else self._plain.encode(payload)

    def _entry(self, header: dict[str, Any], body: Sequence[memoryview]) -> None:
        text = json.dumps(header, separators=(",", ":")).encode()
        self._sealed([_LENGTH.pack(len(text)), text, *body])
        self._count += 1

    def _sealed(self, parts: Sequence[bytes | memoryview]) -> None:
        for part in (*parts, *self._seals.next(parts)):
            self._stream.write(part)


class ByteSource(Protocol):
    """What an export is read from: no seeking, so that it may be a pipe."""

    def read(self, size: int, /) -> bytes: ...


class ExportReader:
    """A RecordSource: what ExportWriter wrote, from front to back, also from a pipe. Everything raises InvalidExport.

    `key`: the export must be signed with it, unless `trusts_anyone`.
    """

    def __init__(
        self, stream: ByteSource, codec: StateCodec, key: ExportKey | None = None, *, trusts_anyone: bool = False
    ) -> None:
        self._stream = stream
        self._codec = codec
        self._checks = EntryChecks()
        self._count = 0
        magic = stream.read(len(MAGIC))
        if magic == _OLD_MAGIC:
            raise InvalidExport("this export was made by an older version, which did not check enough; export it again")
        if magic != MAGIC:
            raise InvalidExport("this is not a cairn export")
        signer = self._exactly(KEY_ID_BYTES)
        self._is_signed = signer != UNSIGNED
        known = key if key is not None and key.id == signer else None
        if known is None and not trusts_anyone:
            raise InvalidExport(_distrust(key is not None, self._is_signed))
        self._seals = Seals(MAGIC + signer, known)

    def next(self) -> NamespaceInfo | Record | None:
        """The next entry, or None at the end."""
        length = self._exactly(_LENGTH.size)
        (num_bytes,) = _LENGTH.unpack(length)
        if not num_bytes:
            self._end(length)
            return None
        self._count += 1
        if num_bytes > _MAX_HEADER_BYTES:
            raise InvalidExport(f"entry {self._count} of the export claims an impossible size")
        text = self._exactly(num_bytes)
        fields = Fields(text, self._count)
        if "namespace_of" in fields:
            self._check_seal([length, text])
            return self._checks.namespace(fields)
        header = self._checks.record(fields)
        frames = [self._exactly(size.stored_bytes) for size in header.groups]
        self._check_seal([length, text, *frames])
        return self._record(fields, header, frames)

    def _record(self, fields: Fields, header: RecordHeader, frames: list[bytes]) -> Record:
        groups = {
            GroupIndex(size.group): self._decoded(fields, size, memoryview(frame))
            for size, frame in zip(header.groups, frames, strict=True)
        }
        return Record(header.key, header.parent, header.position, header.token_ids, groups, header.provenance)

    def _decoded(self, fields: Fields, size: GroupSize, frame: memoryview) -> StatePayload:
        try:
            raw_bytes = self._codec.raw_bytes([frame])
            if raw_bytes != size.raw_bytes:
                raise fields.wrong("groups", f"claim {size.raw_bytes} bytes of state where {raw_bytes} are")
            payload = self._codec.decode([frame])
        except CodecError as failure:
            raise fields.wrong(f"group {size.group}", f"cannot be decoded: {failure}") from None
        if any(dimension > _MAX_DIMENSION for spec in payload.specs for dimension in spec.shape):
            raise fields.wrong(f"group {size.group}", "has a tensor of an impossible shape")
        return payload

    def _end(self, length: bytes) -> None:
        count = self._exactly(_COUNT.size)
        self._check_seal([length, count])
        if _COUNT.unpack(count)[0] != self._count:
            raise InvalidExport(f"the export has {self._count} entries of {_COUNT.unpack(count)[0]}")
        if self._stream.read(1):
            raise InvalidExport("something follows the end of the export")

    def _check_seal(self, entry: list[bytes]) -> None:
        digest, mark = self._seals.next(entry)
        found = self._exactly(SEAL_BYTES)
        found_mark = self._exactly(SEAL_BYTES) if self._is_signed else b""
        if not matches(digest, found):
            raise InvalidExport(f"entry {self._count} of the export does not match its checksum")
        if mark and not matches(mark, found_mark):
            raise InvalidExport(f"entry {self._count} of the export was not signed with this key")

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


def _distrust(has_key: bool, is_signed: bool) -> str:
    if not is_signed:
        why = "the export is not signed"
    elif has_key:
        why = "the export is signed with another key"
    else:
        why = "the export is signed; name the key with --key-file"
    return f"{why}; what it holds decides how models answer, so import it with --trust only if you trust its author"


__all__ = ("MAGIC", "ExportReader", "ExportWriter")
