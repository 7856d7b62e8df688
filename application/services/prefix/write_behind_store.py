"""A block store seen through the queue in front of it: what waits there, or is being written, is there to be read.

What waits is PENDING, and read like what is stored. Reads ask the queue first and the store second, and a record leaves
the queue only once it is in the store: there is no moment at which one that was accepted is in neither. One that is
dropped after all is a miss from then on.

Usage, recency, pins and integrity are the store's alone. So is `put`, which goes past the queue: to it, a parent that
still waits is absent. Records meant to wait are offered to the writer.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from application.ports.block_store import BlockStore, EraseReport, Presence
from application.services.forwarding_store import ForwardingStore
from application.services.prefix.write_queue import WriteQueue
from domain.ids import BlockHash, GroupIndex
from domain.record import BlockKey, Namespace, NamespaceInfo, Record, RecordKey, SnapshotKey
from domain.snapshot_place import SnapshotPlace

_NO_STATE: frozenset[GroupIndex] = frozenset()


class QueueingWriter(Protocol):
    """Whoever takes records from `queue` and stores them."""

    @property
    def queue(self) -> WriteQueue: ...

    def withdraw(self, keys: Sequence[RecordKey]) -> set[RecordKey]:
        """Take what waits of these records and of everything that hangs on them out of the queue, and name it. When it
        returns, none of them is being written either."""
        ...


class WriteBehindStore(ForwardingStore):
    """See the module docstring, and the port for the contract."""

    def __init__(self, store: BlockStore, writer: QueueingWriter) -> None:
        super().__init__(store)
        self._writer = writer
        self._is_closed = False

    def lookup(self, keys: Sequence[BlockKey]) -> Sequence[Presence]:
        waiting = [record is not None for record in self._queued(keys)]
        stored = iter(self._store.lookup([key for key, waits in zip(keys, waiting, strict=True) if not waits]))
        return [Presence.PENDING if waits else next(stored) for waits in waiting]

    def find_snapshots(self, namespace: Namespace, places: Sequence[SnapshotPlace]) -> Sequence[Sequence[SnapshotKey]]:
        if self._is_closed:
            return self._store.find_snapshots(namespace, places)
        waiting = self._writer.queue.find_snapshots(namespace, places)
        return _merged(waiting, self._store.find_snapshots(namespace, places))

    def snapshots(
        self, namespace: Namespace, blocks: Sequence[BlockHash], limit: int | None = None
    ) -> Sequence[Sequence[SnapshotKey]]:
        if self._is_closed:
            return self._store.snapshots(namespace, blocks, limit)
        waiting = self._writer.queue.snapshots(namespace, blocks)
        return [keys[:limit] for keys in _merged(waiting, self._store.snapshots(namespace, blocks, limit))]

    def children(
        self, namespace: Namespace, parent: BlockHash, limit: int
    ) -> Sequence[tuple[BlockKey, tuple[int, ...]]]:
        waiting = self._writer.queue.children(namespace, parent) if not self._is_closed else {}
        return list((waiting | dict(self._store.children(namespace, parent, limit))).items())[:limit]

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        wanted = groups if groups is not None else [None] * len(keys)
        found = [record and _limited(record, chosen) for record, chosen in zip(self._queued(keys), wanted, strict=True)]
        absent = [index for index, record in enumerate(found) if record is None]
        if absent:
            stored = self._store.get([keys[index] for index in absent], [wanted[index] for index in absent])
            for index, record in zip(absent, stored, strict=True):
                found[index] = record
        return found

    def delete(self, keys: Sequence[RecordKey]) -> int:
        """Also takes time while one of the records is being written: that cannot be called back."""
        queue = self._writer.queue
        waiting = self._writer.withdraw(keys)
        parents = queue.outer_parents()
        before = self._stored([*waiting, *parents, *queue.below(parents)])
        num_stored = self._store.delete(keys)
        # What waits may hang on something stored that went because it hung on one of `keys`.
        fallen = before.intersection(parents) - self._stored(parents)
        if fallen:
            waiting |= self._writer.withdraw(list(fallen))
        return num_stored + len(waiting - before)

    def delete_namespace(self, namespace: Namespace) -> int:
        waiting = self._writer.withdraw(self._writer.queue.of_namespace(namespace))
        before = self._stored(waiting)
        return self._store.delete_namespace(namespace) + len(waiting - before)

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> EraseReport:
        waiting = self._writer.withdraw(self._writer.queue.chosen(includes))
        before = self._stored(waiting)
        report = self._store.erase(includes)
        return replace(report, num_records=report.num_records + len(waiting - before))

    def close(self) -> None:
        """The writer is closed before, or what still waits is refused by the store."""
        self._is_closed = True
        super().close()

    def _queued(self, keys: Sequence[RecordKey]) -> list[Record | None]:
        return self._writer.queue.get(keys) if not self._is_closed else [None] * len(keys)

    def _stored(self, keys: Iterable[RecordKey]) -> set[RecordKey]:
        """Those of `keys` that the store holds itself."""
        asked = list(keys)
        records = self._store.get(asked, [_NO_STATE] * len(asked)) if asked else ()
        return {record.key for record in records if record is not None}


def _merged(
    waiting: Sequence[Sequence[SnapshotKey]], stored: Sequence[Sequence[SnapshotKey]]
) -> list[Sequence[SnapshotKey]]:
    return [sorted({*here, *there}) if here else there for here, there in zip(waiting, stored, strict=True)]


def _limited(record: Record, chosen: frozenset[GroupIndex] | None) -> Record:
    if chosen is None:
        return record
    return replace(record, groups={index: payload for index, payload in record.groups.items() if index in chosen})


__all__ = ("QueueingWriter", "WriteBehindStore")
