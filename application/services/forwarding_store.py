"""A block store that hands every call to another one: what stands around a store overrides only what it changes."""

from collections.abc import Callable, Sequence

from application.ports.block_store import BlockStore, EraseReport, IntegrityReport, Presence, PutOutcome, StoreUsage
from domain.ids import BlockHash, GroupIndex
from domain.record import BlockKey, Namespace, NamespaceInfo, Record, RecordKey, SnapshotKey
from domain.snapshot_place import SnapshotPlace


class ForwardingStore:
    """A BlockStore; see the port for the contract."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store

    def open_namespace(self, info: NamespaceInfo) -> None:
        self._store.open_namespace(info)

    def lookup(self, keys: Sequence[BlockKey]) -> Sequence[Presence]:
        return self._store.lookup(keys)

    def find_snapshots(self, namespace: Namespace, places: Sequence[SnapshotPlace]) -> Sequence[Sequence[SnapshotKey]]:
        return self._store.find_snapshots(namespace, places)

    def snapshots(
        self, namespace: Namespace, blocks: Sequence[BlockHash], limit: int | None = None
    ) -> Sequence[Sequence[SnapshotKey]]:
        return self._store.snapshots(namespace, blocks, limit)

    def children(
        self, namespace: Namespace, parent: BlockHash, limit: int
    ) -> Sequence[tuple[BlockKey, tuple[int, ...]]]:
        return self._store.children(namespace, parent, limit)

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        return self._store.get(keys, groups)

    def put(self, records: Sequence[Record]) -> PutOutcome:
        return self._store.put(records)

    def touch(self, keys: Sequence[RecordKey]) -> None:
        self._store.touch(keys)

    def pin(self, keys: Sequence[RecordKey]) -> None:
        self._store.pin(keys)

    def unpin(self, keys: Sequence[RecordKey]) -> None:
        self._store.unpin(keys)

    def delete(self, keys: Sequence[RecordKey]) -> int:
        return self._store.delete(keys)

    def delete_namespace(self, namespace: Namespace) -> int:
        return self._store.delete_namespace(namespace)

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> EraseReport:
        return self._store.erase(includes)

    def usage(self) -> StoreUsage:
        return self._store.usage()

    def check_integrity(self, *, payloads: bool = False) -> IntegrityReport:
        return self._store.check_integrity(payloads=payloads)

    def flush(self) -> None:
        self._store.flush()

    def close(self) -> None:
        self._store.close()


__all__ = ("ForwardingStore",)
