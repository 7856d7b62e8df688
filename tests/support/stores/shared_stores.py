"""A shared store with faults, and the shared tier without threads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from adapters.fake.environment import FakeClock
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
from domain.ids import BlockHash
from domain.prefix.record import Namespace, NamespaceInfo, Record, RecordKey
from tests.support.processes.lanes import HeldLane
from tests.support.stores.memory_shared_store import MemorySharedStore, SharedMemory

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
        self.lane.run()
        self._access.store.erase(includes)

    def close(self, timeout_s: float) -> None:
        self.lane.close()


def pump(tier: SharedTier) -> None:
    assert isinstance(tier.queue, HeldQueue)
    tier.queue.lane.run()
