"""A block store in a dictionary: the reference for the contract, and `--store memory`.

One lock around everything. Payloads are copied to host memory when they are put, so the store keeps no device memory
alive. A record costs its raw bytes plus four a token. Nothing outlives the process.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import RLock

from application.ports.block_store import (
    Advance,
    CompactReport,
    EraseReport,
    IntegrityReport,
    NamespaceUsage,
    NoteGone,
    PreparedPut,
    PutOutcome,
    StoreUsage,
    no_progress,
)
from domain.id_row import ID_BYTES, IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import (
    BlockKey,
    HostPayload,
    Namespace,
    NamespaceInfo,
    Record,
    RecordKey,
    SnapshotKey,
    StatePayload,
    check_ids,
)
from domain.prefix.record_tree import RecordTree, parent_of

_NO_LIMIT_BYTES = 1 << 62
_MAX_ANNOUNCED = 1024


class MemoryBlockStore:
    """A BlockStore in a dictionary. `quota_bytes` None means no limit."""

    def __init__(self, quota_bytes: int | None = None) -> None:
        self._quota_bytes = _NO_LIMIT_BYTES if quota_bytes is None else quota_bytes
        self._lock = RLock()
        self._infos: dict[Namespace, NamespaceInfo] = {}
        self._gone: list[RecordKey] = []
        self._note_gone: NoteGone = lambda _: None
        self._tree = RecordTree(self._gone.append)
        self._closed = False

    def keys(self, namespace: Namespace) -> Sequence[RecordKey]:
        check_ids(namespace)
        with self._lock:
            return [key for key in self._tree.nodes if key.namespace == namespace]

    def watch(self, note_gone: NoteGone) -> None:
        self._note_gone = note_gone

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        wanted = groups if groups is not None else [None] * len(keys)
        with self._lock:
            found = [self._record(key) for key in keys]
        return [record and record.limited(chosen) for record, chosen in zip(found, wanted, strict=True)]

    def touch(self, keys: Sequence[RecordKey]) -> None:
        with self._lock:
            for key in keys:
                if (node := self._tree.nodes.get(key)) is not None:
                    self._tree.touch(node)

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> Sequence[IdRow]:
        with self._lock:
            keys = sorted(self._tree.following(BlockKey(namespace, parent)), key=repr)
            chosen: Sequence[RecordKey] = (
                *[key for key in keys if isinstance(key, BlockKey)][:limit],
                *[key for key in keys if isinstance(key, SnapshotKey)][:limit],
            )
            return [self._tree.nodes[key].record.key_ids for key in chosen]

    def open_namespace(self, info: NamespaceInfo) -> None:
        with self._lock:
            self._infos.pop(info.namespace, None)
            self._infos[info.namespace] = info
            if len(self._infos) > _MAX_ANNOUNCED:
                self._drop_announced()

    def put(self, records: Sequence[Record]) -> PutOutcome:
        # A dict, because one batch may name a record twice.
        with self._lock:
            if self._closed:
                return PutOutcome.UNAVAILABLE
            fresh: dict[RecordKey, Record] = {}
            for record in records:
                if not self._tree.has_parent(record) and parent_of(record) not in fresh:
                    return PutOutcome.ORPHAN
                if record.key not in self._tree.nodes:
                    fresh.setdefault(record.key, record)
            hosted = [_hosted(record) for record in fresh.values()]
            kept = {key for record in records for key in (record.key, parent_of(record))}
            has_room = self._tree.make_room(sum(map(_cost_bytes, hosted)), self._quota_bytes, kept)
            self._report_gone()
            if not has_room:
                return PutOutcome.FULL
            for record in hosted:
                self._tree.insert(record, _cost_bytes(record))
            self.touch([record.key for record in records])
            return PutOutcome.STORED

    def prepare(self, records: Sequence[Record]) -> PreparedPut:
        """Prepares nothing ahead of `put`."""
        return partial(self.put, records)

    def delete(self, keys: Sequence[RecordKey]) -> int:
        with self._lock:
            num_removed = sum(self._tree.remove_below(key) for key in keys)
            self._report_gone()
            return num_removed

    def flush(self) -> None:
        """Does nothing: nothing is held back."""

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> EraseReport:
        with self._lock:
            if self._closed:
                return EraseReport(0, 0, "the store is closed")
            gone = [space for space in self.usage().namespaces if includes is None or includes(space.info)]
            names = {space.info.namespace for space in gone}
            num_records = len(self._tree.drop(names))
            self._report_gone()
            self._infos = {name: info for name, info in self._infos.items() if name not in names}
            return EraseReport(num_records, sum(space.stored_bytes for space in gone))

    def usage(self) -> StoreUsage:
        with self._lock:
            totals: dict[Namespace, list[int]] = {}
            for key, node in self._tree.nodes.items():
                total = totals.setdefault(key.namespace, [0, 0, 0, 0])
                total[0 if isinstance(key, BlockKey) else 1] += 1
                total[2] += node.record.raw_bytes
                total[3] += node.size_bytes
            namespaces = tuple(
                NamespaceUsage(
                    info=self._infos.get(namespace, NamespaceInfo(namespace, "", "")),
                    num_blocks=num_blocks,
                    num_snapshots=num_snapshots,
                    raw_bytes=raw_bytes,
                    stored_bytes=stored_bytes,
                )
                for namespace, (num_blocks, num_snapshots, raw_bytes, stored_bytes) in sorted(totals.items())
            )
            return StoreUsage(
                quota_bytes=self._quota_bytes,
                stored_bytes=self._tree.used_bytes,
                namespaces=namespaces,
                evicted=self._tree.num_evicted,
            )

    def check_integrity(self, *, payloads: bool = False, advance: Advance = no_progress) -> IntegrityReport:
        with self._lock:
            for node in self._tree.nodes.values():
                advance(node.size_bytes)
            return IntegrityReport(len(self._tree.nodes), tuple(self._tree.problems()))

    def compact(self, advance: Advance = no_progress) -> CompactReport:
        """Does nothing: there is no file."""
        num_bytes = self.usage().stored_bytes
        advance(num_bytes)
        return CompactReport(num_bytes, num_bytes)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._tree = RecordTree()

    def _report_gone(self) -> None:
        gone = list(self._gone)
        self._gone.clear()
        if gone:
            self._note_gone(gone)

    def _drop_announced(self) -> None:
        """Forget the names of namespaces without records, so that tenants leave nothing behind."""
        used = self._tree.namespaces()
        if len(self._infos) > 2 * len(used) + _MAX_ANNOUNCED:
            kept = used.union(list(self._infos)[-_MAX_ANNOUNCED // 2 :])
            self._infos = {space: known for space, known in self._infos.items() if space in kept}

    def _record(self, key: RecordKey) -> Record | None:
        node = self._tree.nodes.get(key)
        return node.record if node is not None else None


def _hosted(record: Record) -> Record:
    return replace(record, groups={index: _copied(payload) for index, payload in record.groups.items()})


def _copied(payload: StatePayload) -> HostPayload:
    return HostPayload(payload.specs, tuple(memoryview(bytes(buffer)) for buffer in payload.buffers()))


def _cost_bytes(record: Record) -> int:
    return record.raw_bytes + ID_BYTES * len(record.key_ids)
