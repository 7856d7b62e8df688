"""Reading records: rows from one snapshot, the stream copied out and checked in it, decoding after it ended."""

from collections.abc import Sequence
from threading import local

import lmdb
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64

from adapters.lmdb.environment import Environment, Trees
from adapters.lmdb.faults import Damaged
from adapters.lmdb.pages import PageGeometry
from adapters.lmdb.payload import GroupSpan, Head, group_seed
from adapters.lmdb.rows import (
    NamespaceRow,
    Row,
    child_prefix,
    identity,
    parse_key,
    piece_key,
    record_key,
    snapshot_prefix,
)
from application.ports.state_codec import StateCodec
from domain.ids import BlockHash, GroupIndex
from domain.payload import HostPayload
from domain.record import BlockKey, Namespace, Record, RecordKey, SnapshotKey


class CorruptRecord(Exception):
    """A record's payload does not verify; the index is sound."""


class _Scratch(local):
    def __init__(self) -> None:
        self.buffer = np.empty(0, np.uint8)

    def of(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        if self.buffer.size < size_bytes:
            self.buffer = np.empty(size_bytes, np.uint8)
        return self.buffer[:size_bytes]


_scratch = _Scratch()


class Reader:
    """Any thread; scratch memory belongs to the calling one."""

    def __init__(self, environment: Environment, codec: StateCodec) -> None:
        self._environment = environment
        self._codec = codec

    @property
    def _trees(self) -> Trees:
        return self._environment.trees

    def space(self, txn: "lmdb.Transaction[bytes]", namespace: Namespace) -> int | None:
        value = txn.get(namespace, db=self._trees.ns)
        return NamespaceRow.unpack(namespace, value).space if value is not None else None

    def rows(self, keys: Sequence[RecordKey]) -> list[Row | None]:
        """All from one snapshot."""
        with self._environment.reading() as txn:
            spaces = {namespace: self.space(txn, namespace) for namespace in {key.namespace for key in keys}}
            return [self._row(txn, spaces[key.namespace], key) for key in keys]

    def snapshots(self, namespace: Namespace, blocks: Sequence[BlockHash]) -> list[list[SnapshotKey]]:
        with self._environment.reading() as txn:
            space = self.space(txn, namespace)
            if space is None:
                return [[] for _ in blocks]
            return [self._snapshots(txn, namespace, snapshot_prefix(space, block)) for block in blocks]

    def children(self, namespace: Namespace, parent: BlockHash, limit: int) -> list[tuple[BlockKey, tuple[int, ...]]]:
        """Blocks whose head does not verify are left out."""
        with self._environment.reading() as txn:
            space = self.space(txn, namespace)
            if space is None:
                return []
            found: list[tuple[BlockKey, tuple[int, ...]]] = []
            prefix, cursor = child_prefix(space, parent), txn.cursor(self._trees.kid)
            more = cursor.set_range(prefix)
            while more and len(found) < limit and (link := cursor.key()).startswith(prefix):
                key = BlockKey(namespace, BlockHash(link[len(prefix) :]))
                row = self._row(txn, space, key)
                if row is None:
                    raise Damaged("a link names a block that is not there")
                head = txn.get(piece_key(row.id, 0), db=self._trees.dat)
                if head is not None and (tokens := _tokens(key, head)) is not None:
                    found.append((key, tokens))
                more = cursor.next()
            return found

    def record(self, key: RecordKey, row: Row, wanted: frozenset[GroupIndex] | None) -> Record | None:
        """The record of `row`, or None when it has gone since. Raises CorruptRecord, CodecError, Damaged."""
        with self._environment.viewing() as txn:
            namespace = txn.get(key.namespace, db=self._trees.ns)
            if namespace is None:
                return None
            record_name = record_key(NamespaceRow.unpack(key.namespace, bytes(namespace)).space, key)
            value = txn.get(record_name, db=self._trees.rec)
            if value is None or Row.unpack(record_name, bytes(value)).id != row.id:
                return None
            head = self._head(txn, key, row)
            spans = [span for span in head.groups if wanted is None or span.group in wanted]
            scratch = _scratch.of(sum(span.length for span in spans))
            frames = self._gather(txn, key, row, spans, scratch)
        groups = {span.group: self._decode(frame) for span, frame in zip(spans, frames, strict=True)}
        return Record(key, row.parent, row.position, head.token_ids, groups, row.provenance)

    def verify(self, txn: "lmdb.Transaction[memoryview]", key: RecordKey, row: Row) -> None:
        """Raises CorruptRecord when a check of the payload fails."""
        spans = self._head(txn, key, row).groups
        self._gather(txn, key, row, spans, _scratch.of(sum(span.length for span in spans)))

    def _decode(self, frame: npt.NDArray[np.uint8]) -> HostPayload:
        return self._codec.decode(frame.data)

    def _row(self, txn: "lmdb.Transaction[bytes]", space: int | None, key: RecordKey) -> Row | None:
        if space is None:
            return None
        name = record_key(space, key)
        value = txn.get(name, db=self._trees.rec)
        return Row.unpack(name, value) if value is not None else None

    def _snapshots(self, txn: "lmdb.Transaction[bytes]", namespace: Namespace, prefix: bytes) -> list[SnapshotKey]:
        found: list[SnapshotKey] = []
        cursor = txn.cursor(self._trees.rec)
        more = cursor.set_range(prefix)
        while more and (name := cursor.key()).startswith(prefix):
            key = parse_key(namespace, name)
            if isinstance(key, SnapshotKey):
                found.append(key)
            more = cursor.next()
        return found

    def _head(self, txn: "lmdb.Transaction[memoryview]", key: RecordKey, row: Row) -> Head:
        value = txn.get(piece_key(row.id, 0), db=self._trees.dat)
        try:
            head = Head.unpack(identity(key), bytes(value or b""))
        except (Damaged, ValueError):
            raise CorruptRecord("the head does not match its checksum") from None
        if any(span.offset + span.length > row.stream_bytes for span in head.groups):
            raise CorruptRecord("the head points outside of the stream")
        return head

    def _gather(
        self,
        txn: "lmdb.Transaction[memoryview]",
        key: RecordKey,
        row: Row,
        spans: Sequence[GroupSpan],
        scratch: npt.NDArray[np.uint8],
    ) -> list[npt.NDArray[np.uint8]]:
        frames: list[npt.NDArray[np.uint8]] = []
        geometry, start = self._environment.geometry, 0
        for span in spans:
            frame = scratch[start : start + span.length]
            start += span.length
            digest = xxh3_64(group_seed(identity(key), span.group))
            for offset, part in _parts(txn, self._trees, geometry, row.id, span):
                target = frame[offset : offset + part.size]
                np.copyto(target, part)
                digest.update(target.data)
            if digest.intdigest() != span.check:
                raise CorruptRecord(f"group {span.group} does not match its checksum")
            frames.append(frame)
        return frames


def _parts(
    txn: "lmdb.Transaction[memoryview]", trees: Trees, geometry: PageGeometry, record_id: int, span: GroupSpan
) -> list[tuple[int, npt.NDArray[np.uint8]]]:
    """The pieces of a span with their offsets in it, as views into the map. Raises CorruptRecord."""
    size = geometry.piece_bytes
    found: list[tuple[int, npt.NDArray[np.uint8]]] = []
    position, end = span.offset, span.offset + span.length
    while position < end:
        piece, within = divmod(position, size)
        value = txn.get(piece_key(record_id, piece + 1), db=trees.dat)
        length = min(size - within, end - position)
        if value is None or value.nbytes < within + length:
            raise CorruptRecord("a piece is missing or too short")
        found.append((position - span.offset, np.frombuffer(value, np.uint8)[within : within + length]))
        position += length
    return found


def _tokens(key: BlockKey, head: bytes) -> tuple[int, ...] | None:
    try:
        return Head.unpack(identity(key), head).token_ids
    except (Damaged, ValueError):
        return None


__all__ = ("CorruptRecord", "Reader")
