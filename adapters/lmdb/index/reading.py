"""Reading records: rows from one snapshot; payloads joined out of the map, checked and decoded.

Whoever touches the map or copies out of it gives up the interpreter's lock and has to win it back, so a group's frame
is copied into one piece first: the check and the codec take it whole.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, takewhile

import lmdb
import numpy as np

from adapters.lmdb.faults import Damaged
from adapters.lmdb.file.environment import Environment, Trees
from adapters.lmdb.format.payload import GroupSpan, Head, check_of
from adapters.lmdb.format.rows import (
    NamespaceRow,
    Row,
    child_prefix,
    identity,
    linked,
    parse_key,
    piece_key,
    record_key,
    snapshot_prefix,
    space_prefix,
)
from application.ports.block_store import NamespaceUsage, StoreUsage
from application.ports.state_codec import StateCodec
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import BlockKey, Namespace, Record, RecordKey, SnapshotKey


class CorruptRecord(Exception):
    """A record's payload does not verify; the index is sound."""


class Reader:
    """Any thread."""

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

    def keys(self, namespace: Namespace) -> list[RecordKey]:
        """Of all records."""
        with self._environment.reading() as txn:
            space = self.space(txn, namespace)
            if space is None:
                return []
            prefix, cursor = space_prefix(space), txn.cursor(self._trees.rec)
            if not cursor.set_range(prefix):
                return []
            names = takewhile(lambda name: name.startswith(prefix), cursor.iternext(keys=True, values=False))
            return [parse_key(namespace, name) for name in names]

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> list[IdRow]:
        """Records whose head does not verify are left out."""
        with self._environment.reading() as txn:
            space = self.space(txn, namespace)
            if space is None:
                return []
            keys: list[RecordKey] = [*islice(self._blocks(txn, namespace, space, parent), limit)]
            keys += islice(self._snapshots(txn, namespace, space, parent), limit)
            found = [self._tokens(txn, space, key) for key in keys]
            return [tokens for tokens in found if tokens is not None]

    def usage(self, quota_bytes: int | None) -> StoreUsage:
        """From the sums of the namespaces, without evictions and faults. `quota_bytes` None: what the writer set."""
        environment = self._environment
        with environment.reading() as txn:
            rows = [(key, NamespaceRow.unpack(key, value)) for key, value in txn.cursor(self._trees.ns)]
            used_bytes = self._trees.used_pages(txn) * environment.geometry.page_bytes
        namespaces = tuple(
            NamespaceUsage(
                info=row.info(key),
                num_blocks=row.num_blocks,
                num_snapshots=row.num_snapshots,
                raw_bytes=row.raw_bytes,
                stored_bytes=row.stored_bytes,
            )
            for key, row in rows
        )
        quota_bytes = environment.info()[1] if quota_bytes is None else quota_bytes
        return StoreUsage(quota_bytes=quota_bytes, stored_bytes=used_bytes, namespaces=namespaces)

    def record(self, key: RecordKey, row: Row, wanted: frozenset[GroupIndex] | None) -> Record | None:
        """The record of `row`, or None when it has gone since. Raises CorruptRecord, CodecError, Damaged.

        A head names its record, and no id is given twice, so the row need not be read again unless something is wrong.
        """
        environment = self._environment
        with environment.viewing() as txn, environment.notes.of(row.id):
            try:
                head = _head(environment, txn, key, row)
                groups = {
                    span.group: self._codec.decode(_frame(environment, txn, key, row, span))
                    for span in head.spans(wanted)
                }
                return Record(key, row.parent, row.position, head.token_ids, groups, row.provenance)
            except (CorruptRecord, ValueError) as failure:
                if not self._is_there(txn, key, row):
                    return None
                if isinstance(failure, CorruptRecord):
                    raise
                raise CorruptRecord(str(failure)) from None  # written by a version that looked less closely

    def _is_there(self, txn: "lmdb.Transaction[memoryview]", key: RecordKey, row: Row) -> bool:
        """Whether the record is still the one of `row`."""
        namespace = txn.get(key.namespace, db=self._trees.ns)
        if namespace is None:
            return False
        name = record_key(NamespaceRow.unpack(key.namespace, bytes(namespace)).space, key)
        value = txn.get(name, db=self._trees.rec)
        return value is not None and Row.unpack(name, bytes(value)).id == row.id

    def _row(self, txn: "lmdb.Transaction[bytes]", space: int | None, key: RecordKey) -> Row | None:
        entry = self._entry(txn, space, key)
        return Row.unpack(*entry) if entry is not None else None

    def _entry(self, txn: "lmdb.Transaction[bytes]", space: int | None, key: RecordKey) -> tuple[bytes, bytes] | None:
        """A row's name and its sealed value."""
        if space is None:
            return None
        name = record_key(space, key)
        value = txn.get(name, db=self._trees.rec)
        return (name, value) if value is not None else None

    def _snapshots(
        self, txn: "lmdb.Transaction[bytes]", namespace: Namespace, space: int, parent: BlockHash
    ) -> Iterator[SnapshotKey]:
        for name in _under(txn.cursor(self._trees.rec), snapshot_prefix(space, parent)):
            key = parse_key(namespace, name)
            if isinstance(key, SnapshotKey):
                yield key

    def _blocks(
        self, txn: "lmdb.Transaction[bytes]", namespace: Namespace, space: int, parent: BlockHash
    ) -> Iterator[BlockKey]:
        for link in _under(txn.cursor(self._trees.kid), child_prefix(space, parent)):
            yield BlockKey(namespace, linked(link))

    def _tokens(self, txn: "lmdb.Transaction[bytes]", space: int, key: RecordKey) -> IdRow | None:
        row = self._row(txn, space, key)
        if row is None:
            raise Damaged("a link names a record that is not there")
        with self._environment.notes.of(row.id):
            value = txn.get(piece_key(row.id, 0), db=self._trees.dat)
        try:
            return Head.unpack(identity(key), value or b"").token_ids
        except (Damaged, ValueError):
            return None


def verify(environment: Environment, txn: "lmdb.Transaction[memoryview]", key: RecordKey, row: Row) -> None:
    """Raises CorruptRecord when a check of the payload fails."""
    with environment.notes.of(row.id):
        for span in _head(environment, txn, key, row).groups:
            _frame(environment, txn, key, row, span)


def _head(environment: Environment, txn: "lmdb.Transaction[memoryview]", key: RecordKey, row: Row) -> Head:
    value = txn.get(piece_key(row.id, 0), db=environment.trees.dat)
    try:
        head = Head.unpack(identity(key), bytes(value or b""))
    except (Damaged, ValueError):
        raise CorruptRecord("the head does not match its checksum") from None
    if any(span.offset + span.length > row.stream_bytes for span in head.groups):
        raise CorruptRecord("the head points outside of the stream")
    return head


def _frame(
    environment: Environment, txn: "lmdb.Transaction[memoryview]", key: RecordKey, row: Row, span: GroupSpan
) -> memoryview:
    """A group's frame: a copy, or where it lies in the map in one piece. Raises CorruptRecord."""
    size = environment.geometry.piece_bytes
    parts: list[memoryview] = []
    position, end = span.offset, span.offset + span.length
    while position < end:
        piece, within = divmod(position, size)
        value = txn.get(piece_key(row.id, piece + 1), db=environment.trees.dat)
        length = min(size - within, end - position)
        if value is None or value.nbytes < within + length:
            raise CorruptRecord("a piece is missing or too short")
        parts.append(value[within : within + length])
        position += length
    frame = parts[0] if len(parts) == 1 else np.concatenate([np.frombuffer(part, np.uint8) for part in parts]).data
    if check_of(identity(key), span.group, [frame]) != span.check:
        raise CorruptRecord(f"group {span.group} does not match its checksum")
    return frame


def _under(cursor: "lmdb.Cursor[bytes]", prefix: bytes) -> Iterator[bytes]:
    more = cursor.set_range(prefix)
    while more and (name := cursor.key()).startswith(prefix):
        yield name
        more = cursor.next()
