"""Records as they are read: rows from one snapshot; payloads joined out of the map, checked and decoded.

Every access to the map and every copy out of it releases the interpreter's lock and has to acquire it again, so a
group's frame is copied into one piece first: the check and the codec take it whole.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import lmdb
import numpy as np

from adapters.lmdb.entries import (
    NamespaceEntry,
    RecordEntry,
    block_name,
    child_prefix,
    identity,
    linked,
    parse_key,
    piece_key,
    record_key,
    snapshot_prefix,
    space_prefix,
)
from adapters.lmdb.environment import Environment, Tree
from adapters.lmdb.faults import CorruptRecord, Damaged
from adapters.lmdb.payload import GroupSpan, Head, check_of
from application.ports.block_store import NamespaceUsage, StateCodec, StoreUsage
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import Namespace, Record, RecordKey


class Reader:
    """The read side of a store. Any thread."""

    def __init__(self, environment: Environment, codec: StateCodec) -> None:
        self._environment = environment
        self._codec = codec

    def rows(self, keys: Sequence[RecordKey]) -> list[RecordEntry | None]:
        """Returns the rows of records, None for an absent one; all from one snapshot."""
        with self._environment.reading() as txn:
            spaces = {namespace: self._space(txn, namespace) for namespace in {key.namespace for key in keys}}
            found: list[RecordEntry | None] = []
            for key in keys:
                space = spaces[key.namespace]
                found.append(self._row(txn, record_key(space, key)) if space is not None else None)
            return found

    def keys(self, namespace: Namespace) -> list[RecordKey]:
        """Returns the keys of all records of a namespace."""
        with self._environment.reading() as txn:
            space = self._space(txn, namespace)
            if space is None:
                return []
            return [parse_key(namespace, name) for name in under(txn, self._environment.trees.rec, space_prefix(space))]

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> list[IdRow]:
        """Returns token ids of records that follow a block; those whose head does not verify are left out."""
        trees = self._environment.trees
        with self._environment.reading() as txn:
            space = self._space(txn, namespace)
            if space is None:
                return []
            links = islice(under(txn, trees.kid, child_prefix(space, parent)), limit)
            names = [block_name(space, linked(link)) for link in links]
            names += islice(under(txn, trees.rec, snapshot_prefix(space, parent)), limit)
            found = [self._tokens(txn, parse_key(namespace, name), name) for name in names]
            return [tokens for tokens in found if tokens is not None]

    def usage(self, quota_bytes: int | None) -> StoreUsage:
        """Returns the sums of the namespaces, without evictions and faults. `quota_bytes` None: the writer's."""
        environment = self._environment
        with environment.reading() as txn:
            rows = [(key, NamespaceEntry.unpack(key, value)) for key, value in txn.cursor(environment.trees.ns)]
            used_bytes = environment.trees.used_pages(txn) * environment.geometry.page_bytes
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

    def record(self, key: RecordKey, row: RecordEntry, wanted: frozenset[GroupIndex] | None) -> Record | None:
        """Returns the record of `row`, or None when it was removed since. Raises CorruptRecord, CodecError, Damaged.

        A head names its record, and no id is given twice, so the row is read again only when something is wrong.
        """
        environment = self._environment
        with environment.viewing() as txn, environment.notes.of(row.id):
            try:
                head = _head(environment, txn, key, row)
                groups = {
                    span.group: self._codec.decode(_frame(environment, txn, key, row, span))
                    for span in head.groups
                    if wanted is None or span.group in wanted
                }
                return Record(key, row.parent, row.position, head.token_ids, groups, row.provenance)
            except (CorruptRecord, ValueError) as failure:
                if not self._is_there(txn, key, row):
                    return None
                raise CorruptRecord(str(failure)) from None

    def _is_there(self, txn: "lmdb.Transaction[memoryview]", key: RecordKey, row: RecordEntry) -> bool:
        """Returns whether the record is still the one of `row`."""
        trees = self._environment.trees
        namespace = txn.get(key.namespace, db=trees.ns)
        if namespace is None:
            return False
        name = record_key(NamespaceEntry.unpack(key.namespace, bytes(namespace)).space, key)
        value = txn.get(name, db=trees.rec)
        return value is not None and RecordEntry.unpack(name, bytes(value)).id == row.id

    def _space(self, txn: "lmdb.Transaction[bytes]", namespace: Namespace) -> int | None:
        value = txn.get(namespace, db=self._environment.trees.ns)
        return NamespaceEntry.unpack(namespace, value).space if value is not None else None

    def _row(self, txn: "lmdb.Transaction[bytes]", name: bytes) -> RecordEntry | None:
        value = txn.get(name, db=self._environment.trees.rec)
        return RecordEntry.unpack(name, value) if value is not None else None

    def _tokens(self, txn: "lmdb.Transaction[bytes]", key: RecordKey, name: bytes) -> IdRow | None:
        row = self._row(txn, name)
        if row is None:
            raise Damaged("a link names an absent record")
        with self._environment.notes.of(row.id):
            value = txn.get(piece_key(row.id, 0), db=self._environment.trees.dat)
        try:
            return Head.unpack(identity(key), value or b"").token_ids
        except CorruptRecord:
            return None


def verify(environment: Environment, txn: "lmdb.Transaction[memoryview]", key: RecordKey, row: RecordEntry) -> None:
    """Checks a record's payload. Raises CorruptRecord when a check fails."""
    with environment.notes.of(row.id):
        for span in _head(environment, txn, key, row).groups:
            _frame(environment, txn, key, row, span)


def under(txn: "lmdb.Transaction[Any]", tree: Tree, prefix: bytes) -> Iterator[bytes]:
    """Yields the keys of a tree that begin with `prefix`, in order."""
    cursor = txn.cursor(tree)
    if cursor.set_range(prefix):
        for key in cursor.iternext(keys=True, values=False):
            if not (name := bytes(key)).startswith(prefix):
                return
            yield name


def _head(environment: Environment, txn: "lmdb.Transaction[memoryview]", key: RecordKey, row: RecordEntry) -> Head:
    value = txn.get(piece_key(row.id, 0), db=environment.trees.dat)
    head = Head.unpack(identity(key), bytes(value or b""))
    if any(span.offset + span.length > row.stream_bytes for span in head.groups):
        raise CorruptRecord("the head points outside of the stream")
    return head


def _frame(
    environment: Environment, txn: "lmdb.Transaction[memoryview]", key: RecordKey, row: RecordEntry, span: GroupSpan
) -> memoryview:
    """Returns a group's frame: a copy, or a view into the map where it lies in one piece. Raises CorruptRecord."""
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
