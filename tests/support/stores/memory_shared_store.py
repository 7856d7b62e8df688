"""A shared store in a dictionary: the reference for the contract. Servers that get one `SharedMemory` share it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

from application.ports.block_store import EncodedPayload
from application.ports.shared_store import SharedFailure, SharedHint, SharedPut, SharedRead, SharedStoreError
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import (
    HostPayload,
    Namespace,
    NamespaceInfo,
    Record,
    RecordKey,
    SnapshotKey,
    StatePayload,
)


@dataclass(slots=True)
class SharedMemory:
    """The content, by fleet and key. `rejected`: keys whose records are not authentic."""

    records: dict[tuple[str, RecordKey], Record] = field(default_factory=dict[tuple[str, RecordKey], Record])
    infos: dict[tuple[str, Namespace], NamespaceInfo] = field(
        default_factory=dict[tuple[str, Namespace], NamespaceInfo]
    )
    rejected: set[RecordKey] = field(default_factory=set[RecordKey])
    lock: Lock = field(default_factory=Lock)


class MemorySharedStore:
    """A SharedStore in a dictionary."""

    def __init__(self, memory: SharedMemory, fleet: str = "") -> None:
        self._memory = memory
        self._fleet = fleet
        self._is_closed = False

    def find(self, keys: Sequence[RecordKey]) -> Sequence[SharedHint | None]:
        found = [self._get(key) for key in keys]
        return [SharedHint(one.key, one.raw_bytes, b"") if one is not None else None for one in found]

    def lengths(self, namespace: Namespace, parents: Sequence[BlockHash]) -> Sequence[frozenset[int]]:
        self._check()
        with self._memory.lock:
            kept = [key for fleet, key in self._memory.records if fleet == self._fleet and key.namespace == namespace]
        tails = [key for key in kept if isinstance(key, SnapshotKey)]
        return [frozenset(key.num_partial for key in tails if key.block_hash == parent) for parent in parents]

    def read(self, hints: Sequence[SharedHint]) -> SharedRead:
        found = [self._get(hint.key) for hint in hints]
        rejected = [record.key for record in found if record is not None and record.key in self._memory.rejected]
        with self._memory.lock:
            for key in rejected:
                del self._memory.records[self._fleet, key]
        records = [None if record is None or record.key in rejected else record for record in found]
        num_bytes = sum(record.raw_bytes for record in found if record is not None)
        return SharedRead(records, [record and _encoded(record) for record in records], len(rejected), num_bytes)

    def put(self, info: NamespaceInfo, records: Sequence[Record]) -> SharedPut:
        self._check()
        fresh = {record.key: _hosted(record) for record in records}
        with self._memory.lock:
            self._memory.infos[self._fleet, info.namespace] = info
            absent = {key: record for key, record in fresh.items() if (self._fleet, key) not in self._memory.records}
            self._memory.records |= {(self._fleet, key): record for key, record in absent.items()}
        num_bytes = sum(record.raw_bytes for record in absent.values())
        return SharedPut(len(absent), len(records) - len(absent), num_bytes)

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> int:
        self._check()
        with self._memory.lock:
            infos = self._memory.infos
            own = [name for (fleet, name), info in infos.items() if fleet == self._fleet and _is_in(info, includes)]
            gone = [at for at in self._memory.records if at[0] == self._fleet and at[1].namespace in own]
            for at in gone:
                del self._memory.records[at]
            return len(gone)

    def ping(self) -> None:
        self._check()

    def close(self) -> None:
        self._is_closed = True

    def _get(self, key: RecordKey) -> Record | None:
        self._check()
        with self._memory.lock:
            return self._memory.records.get((self._fleet, key))

    def _check(self) -> None:
        if self._is_closed:
            raise SharedStoreError(SharedFailure.UNREACHABLE, "the shared store was closed")


def _is_in(info: NamespaceInfo, includes: Callable[[NamespaceInfo], bool] | None) -> bool:
    return includes is None or includes(info)


def _encoded(record: Record) -> Record:
    """With frames that say nothing, for stores that only hand them on."""
    groups: dict[GroupIndex, StatePayload] = {
        index: EncodedPayload(payload.specs, memoryview(b""), lambda _, payload=payload: payload)
        for index, payload in record.groups.items()
    }
    return replace(record, groups=groups)


def _hosted(record: Record) -> Record:
    groups = {
        index: HostPayload(payload.specs, tuple(memoryview(bytes(view)) for view in payload.buffers()))
        for index, payload in record.groups.items()
    }
    return replace(record, groups=groups)
