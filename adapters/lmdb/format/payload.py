"""A record's payload in pieces: the head (tokens and the directory of groups) and the stream of codec frames."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct, error

from xxhash import xxh3_64

from adapters.lmdb.format.rows import identity, opened, sealed
from application.ports.state_codec import StateCodec
from domain.id_row import ID_BYTES, IdRow
from domain.ids import GroupIndex
from domain.prefix.record import Record

_TOKENS = Struct("<I")
_COUNT = Struct("<H")
_GROUP = Struct("<HQQQ")


@dataclass(frozen=True, slots=True)
class GroupSpan:
    """Where in the stream a group's frame lies, and its check."""

    group: GroupIndex
    offset: int
    length: int
    check: int


@dataclass(frozen=True, slots=True)
class EncodedRecord:
    """A record ready to be written: everything expensive is done, and no transaction is open yet."""

    record: Record
    raw_bytes: int
    head: bytes
    stream: tuple[memoryview, ...]

    @property
    def stream_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.stream)


def encode(record: Record, codec: StateCodec) -> EncodedRecord:
    """Raises whatever the payload or the codec raises."""
    name = identity(record.key)
    spans: list[GroupSpan] = []
    stream: list[memoryview] = []
    offset = raw_bytes = 0
    for group, payload in record.groups.items():
        frame = codec.encode(payload)
        length = sum(buffer.nbytes for buffer in frame)
        spans.append(GroupSpan(group, offset, length, check_of(name, group, frame)))
        stream.extend(frame)
        offset += length
        raw_bytes += payload.size_bytes
    return EncodedRecord(record, raw_bytes, Head(record.key_ids, tuple(spans)).pack(name), tuple(stream))


@dataclass(frozen=True, slots=True)
class Head:
    """Piece 0 of a record."""

    token_ids: IdRow
    groups: tuple[GroupSpan, ...]

    def spans(self, wanted: frozenset[GroupIndex] | None) -> list[GroupSpan]:
        """Those of the wanted groups; None: of all."""
        return [span for span in self.groups if wanted is None or span.group in wanted]

    def pack(self, key: bytes) -> bytes:
        spans = b"".join(_GROUP.pack(span.group, span.offset, span.length, span.check) for span in self.groups)
        tokens = _TOKENS.pack(len(self.token_ids)) + self.token_ids.to_bytes()
        return sealed(key, tokens + _COUNT.pack(len(self.groups)) + spans)

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> "Head":
        """Raises Damaged when the check fails, ValueError when the content makes no sense all the same."""
        body = opened(key, value)
        try:
            (count,) = _TOKENS.unpack_from(body)
            offset = _TOKENS.size + ID_BYTES * count
            token_ids = IdRow.of_bytes(body[_TOKENS.size : offset])
            (num_groups,) = _COUNT.unpack_from(body, offset)
            offset += _COUNT.size
            spans = [_GROUP.unpack_from(body, offset + index * _GROUP.size) for index in range(num_groups)]
        except error:
            raise ValueError("a head cannot be read") from None
        return cls(token_ids, tuple(GroupSpan(*span) for span in spans))


def check_of(key: bytes, group: GroupIndex, buffers: Iterable[memoryview]) -> int:
    """The check of a group's frame, given in consecutive buffers. It begins with where the frame belongs, so that none
    verifies in another place."""
    digest = xxh3_64(key + _COUNT.pack(group))
    for buffer in buffers:
        digest.update(buffer)
    return digest.intdigest()


def cut(buffers: Sequence[memoryview], sizes: Sequence[int]) -> Iterable[memoryview | bytes]:
    """Consecutive buffers as pieces of the given sizes; copies only where a piece spans two buffers."""
    pending = [buffer for buffer in buffers if buffer.nbytes]
    index = offset = 0
    for size in sizes:
        parts: list[memoryview] = []
        while size:
            part = pending[index][offset : offset + size]
            parts.append(part)
            size -= part.nbytes
            offset += part.nbytes
            if offset == pending[index].nbytes:
                index, offset = index + 1, 0
        yield parts[0] if len(parts) == 1 else b"".join(parts)
