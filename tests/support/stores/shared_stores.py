"""Shared stores: in memory (the reference for the contract), with faults, and the shared tier without threads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from threading import Lock

from adapters.fake.environment import FakeClock
from application.ports.block_store import EncodedPayload
from application.ports.event_sink import EventSink
from application.ports.shared_store import (
    SharedFailure,
    SharedHint,
    SharedPut,
    SharedRead,
    SharedStore,
    SharedStoreError,
)
from application.services.lane import Lane
from application.services.prefix.shared.access import SharedAccess, SharedQueue
from application.services.prefix.shared.tier import SharedTier
from application.settings import StoreSettings
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
from tests.support.processes.lanes import HeldLane


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


DEADLINE_S = StoreSettings().shared_deadline_s


@dataclass(slots=True)
class SharedFaults:
    """Chances from 0 to 1, of each call: it fails, it is `slow_s` late; of each record that is read: it was evicted
    just now, or forged. `is_gone`, `is_full`: what every call says."""

    failures: float = 0.0
    delays: float = 0.0
    slow_s: float = 2.0
    evictions: float = 0.0
    forgeries: float = 0.0
    is_gone: bool = False
    is_full: bool = False


class FaultySharedStore:
    """A SharedStore over one in memory. `clock`: of the server that calls it, which a slow call moves on."""

    def __init__(self, memory: SharedMemory, random: Random, faults: SharedFaults, fleet: str = "") -> None:
        self.memory, self.faults = memory, faults
        self.clock: FakeClock | None = None
        self._store = MemorySharedStore(memory, fleet)
        self._fleet = fleet
        self._random = random
        self.calls: list[str] = []

    def find(self, keys: Sequence[RecordKey]) -> Sequence[SharedHint | None]:
        self._call("find")
        return self._store.find(keys)

    def lengths(self, namespace: Namespace, parents: Sequence[BlockHash]) -> Sequence[frozenset[int]]:
        self._call("lengths")
        return self._store.lengths(namespace, parents)

    def read(self, hints: Sequence[SharedHint]) -> SharedRead:
        self._call("read")
        for hint in hints:
            if self._random.random() < self.faults.evictions:
                self.memory.records.pop((self._fleet, hint.key), None)
            elif self._random.random() < self.faults.forgeries:
                self.memory.rejected.add(hint.key)
        return self._store.read(hints)

    def put(self, info: NamespaceInfo, records: Sequence[Record]) -> SharedPut:
        self._call("put")
        if self.faults.is_full:
            raise SharedStoreError(SharedFailure.FULL, "OOM command not allowed")
        self.memory.rejected -= {record.key for record in records}
        return self._store.put(info, records)

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> int:
        self._call("erase")
        return self._store.erase(includes)

    def ping(self) -> None:
        self._call("ping")
        self._store.ping()

    def close(self) -> None:
        self._store.close()

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.faults.is_gone or self._random.random() < self.faults.failures:
            raise SharedStoreError(SharedFailure.UNREACHABLE, "injected")
        if self.clock is not None and self._random.random() < self.faults.delays:
            self.clock.advance(self.faults.slow_s)


def stepped_tier(
    store: SharedStore, events: EventSink, clock: FakeClock, calls: Lane, *, max_bytes: int = 1 << 30
) -> SharedTier:
    """A tier whose calls are made by `calls`, and which writes when it is pumped."""
    if isinstance(store, FaultySharedStore):
        store.clock = clock
    access = SharedAccess(store, events, clock, DEADLINE_S)
    return SharedTier(access, HeldQueue(access, max_bytes), calls)


class HeldQueue(SharedQueue):
    """Writes when the test says so, or something is erased behind it."""

    def __init__(self, access: SharedAccess, max_bytes: int) -> None:
        self.lane = HeldLane()
        super().__init__(access, max_bytes, self.lane)

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None) -> None:
        self.drop_held(includes)
        self.lane.run()
        self._access.store.erase(includes)

    def close(self, timeout_s: float) -> None:
        self.lane.close()


def pump(tier: SharedTier) -> None:
    assert isinstance(tier.queue, HeldQueue)
    tier.queue.lane.run()
