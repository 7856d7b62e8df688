"""A block store that forwards every call to another one: fakes override only the methods that they change."""

from collections.abc import Callable, Sequence
from functools import partial

from application.ports.block_store import (
    Advance,
    BlockStore,
    CompactReport,
    EraseReport,
    IntegrityReport,
    NoteGone,
    PreparedPut,
    PutOutcome,
    StoreUsage,
    no_progress,
)
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import Namespace, NamespaceInfo, Record, RecordKey


class ForwardingStore:
    """A BlockStore; see the port for the contract."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store

    def keys(self, namespace: Namespace) -> Sequence[RecordKey]:
        return self._store.keys(namespace)

    def watch(self, note_gone: NoteGone) -> None:
        self._store.watch(note_gone)

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        return self._store.get(keys, groups)

    def touch(self, keys: Sequence[RecordKey]) -> None:
        self._store.touch(keys)

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> Sequence[IdRow]:
        return self._store.followers(namespace, parent, limit)

    def open_namespace(self, info: NamespaceInfo) -> None:
        self._store.open_namespace(info)

    def put(self, records: Sequence[Record]) -> PutOutcome:
        return self._store.put(records)

    def prepare(self, records: Sequence[Record]) -> PreparedPut:
        """Prepares nothing: the result calls `put`, which fakes override."""
        return partial(self.put, records)

    def delete(self, keys: Sequence[RecordKey]) -> int:
        return self._store.delete(keys)

    def flush(self) -> None:
        self._store.flush()

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> EraseReport:
        return self._store.erase(includes)

    def usage(self) -> StoreUsage:
        return self._store.usage()

    def check_integrity(self, *, payloads: bool = False, advance: Advance = no_progress) -> IntegrityReport:
        return self._store.check_integrity(payloads=payloads, advance=advance)

    def compact(self, advance: Advance = no_progress) -> CompactReport:
        return self._store.compact(advance)

    def close(self) -> None:
        self._store.close()
