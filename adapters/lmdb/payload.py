"""A record's payload in pieces: the head (tokens and the directory of groups) and the stream of codec frames.

A value that fits twice into a page lies inside a leaf page as a node; a larger one takes whole pages of its own, the
first of which loses 16 bytes to a header. The formulas are LMDB's (0.9) and checked against its page counts by
`check_integrity`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct, error
from typing import NamedTuple

from xxhash import xxh3_64

from adapters.lmdb.entries import LINK_KEY_BYTES, PIECE_KEY_BYTES, ROW_BYTES, identity, is_block, opened, sealed
from adapters.lmdb.faults import CorruptRecord, Damaged
from application.ports.block_store import StateCodec
from domain.id_row import ID_BYTES, IdRow
from domain.ids import GroupIndex
from domain.prefix.record import Record

_TOKENS = Struct("<I")
_COUNT = Struct("<H")
_GROUP = Struct("<HQQQ")

_PAGE_HEADER_BYTES = 16
_NODE_HEADER_BYTES = 8
_SLOT_BYTES = 2
_PIECE_SLACK_BYTES = 24
_TARGET_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PageGeometry:
    """The cost of values in a database with pages of `page_bytes`: the page size of the machine that made it."""

    page_bytes: int

    @property
    def piece_bytes(self) -> int:
        """The size of all pieces of a stream but its last."""
        return _TARGET_PIECE_BYTES // self.page_bytes * self.page_bytes - _PIECE_SLACK_BYTES

    def overflow_pages(self, key_bytes: int, value_bytes: int) -> int:
        """Returns the whole pages of a value; 0 when it lies inside a leaf page."""
        node_limit = (((self.page_bytes - _PAGE_HEADER_BYTES) // 2) & -2) - _SLOT_BYTES
        if _NODE_HEADER_BYTES + key_bytes + value_bytes <= node_limit:
            return 0
        return (_PAGE_HEADER_BYTES - 1 + value_bytes) // self.page_bytes + 1

    def cost_bytes(self, key_bytes: int, value_bytes: int) -> int:
        """Returns the charge for one value: its node in a leaf page, and the whole pages of its own."""
        pages = self.overflow_pages(key_bytes, value_bytes)
        node_bytes = (_NODE_HEADER_BYTES + key_bytes + (8 if pages else value_bytes) + 1) // 2 * 2 + _SLOT_BYTES
        return node_bytes + pages * self.page_bytes

    def piece_sizes(self, stream_bytes: int) -> list[int]:
        """Returns the sizes of the pieces of a stream, in order."""
        full, rest = divmod(stream_bytes, self.piece_bytes)
        return [self.piece_bytes] * full + ([rest] if rest else [])

    def charged_bytes(self, key: bytes, head_bytes: int, piece_sizes: Sequence[int]) -> int:
        """Returns the charge for a record: its pieces, its row, and its link where it is a block."""
        payload = sum(self.cost_bytes(PIECE_KEY_BYTES, size) for size in (head_bytes, *piece_sizes))
        link = self.cost_bytes(LINK_KEY_BYTES, 0) if is_block(key) else 0
        return payload + self.cost_bytes(len(key), ROW_BYTES) + link


@dataclass(frozen=True, slots=True)
class EncodedRecord:
    """A record ready to be written: everything expensive is done, and no transaction is open yet."""

    record: Record
    head: bytes
    stream: tuple[memoryview, ...]

    @property
    def stream_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.stream)


def encode(record: Record, codec: StateCodec) -> EncodedRecord:
    """Encodes a record. Raises what the payload or the codec raises."""
    name = identity(record.key)
    spans: list[GroupSpan] = []
    stream: list[memoryview] = []
    offset = 0
    for group, payload in record.groups.items():
        frame = codec.encode(payload)
        length = sum(buffer.nbytes for buffer in frame)
        spans.append(GroupSpan(group, offset, length, check_of(name, group, frame)))
        stream.extend(frame)
        offset += length
    return EncodedRecord(record, Head(record.key_ids, tuple(spans)).pack(name), tuple(stream))


class GroupSpan(NamedTuple):
    """The place of a group's frame in the stream, and its check."""

    group: GroupIndex
    offset: int
    length: int
    check: int


@dataclass(frozen=True, slots=True)
class Head:
    """Piece 0 of a record: its tokens and the directory of its groups."""

    token_ids: IdRow
    groups: tuple[GroupSpan, ...]

    def pack(self, key: bytes) -> bytes:
        spans = b"".join(_GROUP.pack(*span) for span in self.groups)
        tokens = _TOKENS.pack(len(self.token_ids)) + self.token_ids.to_bytes()
        return sealed(key, tokens + _COUNT.pack(len(self.groups)) + spans)

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> "Head":
        """Returns the head of a value. Raises CorruptRecord when the check fails or the content is invalid."""
        try:
            body = opened(key, value)
            (count,) = _TOKENS.unpack_from(body)
            offset = _TOKENS.size + ID_BYTES * count
            token_ids = IdRow.of_bytes(body[_TOKENS.size : offset])
            (num_groups,) = _COUNT.unpack_from(body, offset)
            offset += _COUNT.size
            spans = [_GROUP.unpack_from(body, offset + index * _GROUP.size) for index in range(num_groups)]
        except (Damaged, ValueError, error):
            raise CorruptRecord("the head does not match its checksum") from None
        return cls(token_ids, tuple(GroupSpan(*span) for span in spans))


def check_of(key: bytes, group: GroupIndex, buffers: Iterable[memoryview]) -> int:
    """Returns the check of a group's frame, given in consecutive buffers. It covers the record's identity, so that no
    frame verifies in another place."""
    digest = xxh3_64(key + _COUNT.pack(group))
    for buffer in buffers:
        digest.update(buffer)
    return digest.intdigest()


def cut(buffers: Sequence[memoryview], sizes: Sequence[int]) -> Iterable[memoryview | bytes]:
    """Yields consecutive buffers as pieces of the given sizes; copies only where a piece spans two buffers."""
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
