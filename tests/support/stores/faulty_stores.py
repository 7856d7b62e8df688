"""Block stores that fail as the contract allows, whose writes wait for the test, or that hang."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from threading import Event, Lock
from typing import Any

from adapters.memory.block_store import MemoryBlockStore
from application.ports.block_store import BlockStore, EraseReport, NoteGone, PreparedPut, PutOutcome, StoreUsage
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import Namespace, NamespaceInfo, Record, RecordKey
from tests.support.patience import PATIENCE_S
from tests.support.stores.forwarding_store import ForwardingStore


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Chances from 0 to 1: that one `get` misses, that a `put` is refused."""

    seed: int = 0
    get_misses: float = 0.0
    put_refusals: float = 0.0


class FaultInjectingBlockStore(ForwardingStore):
    """Wraps any BlockStore. While `is_down` is set every read misses and every write is refused. Any thread."""

    def __init__(self, store: BlockStore, plan: FaultPlan) -> None:
        super().__init__(store)
        self._plan = plan
        self._random = Random(plan.seed)
        self._lock = Lock()
        self._injected = 0
        self._note_gone: NoteGone = lambda _: None
        self._is_down = False

    @property
    def is_down(self) -> bool:
        return self._is_down

    @is_down.setter
    def is_down(self, value: bool) -> None:
        """Simulates a volume that disappears, or returns."""
        self._is_down = value
        self._note_gone(None)

    def keys(self, namespace: Namespace) -> Sequence[RecordKey]:
        return [] if self.is_down else self._store.keys(namespace)

    def watch(self, note_gone: NoteGone) -> None:
        self._note_gone = note_gone
        self._store.watch(note_gone)

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> Sequence[IdRow]:
        return [] if self.is_down else self._store.followers(namespace, parent, limit)

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        found = self._store.get(keys, groups)
        return [None if self._strikes(self._plan.get_misses) else record for record in found]

    def put(self, records: Sequence[Record]) -> PutOutcome:
        return PutOutcome.UNAVAILABLE if self._strikes(self._plan.put_refusals) else self._store.put(records)

    def delete(self, keys: Sequence[RecordKey]) -> int:
        return 0 if self.is_down else self._store.delete(keys)

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> EraseReport:
        return EraseReport(0, 0, "the store is down") if self.is_down else self._store.erase(includes)

    def usage(self) -> StoreUsage:
        usage = self._store.usage()
        with self._lock:
            faults = {**usage.faults, **({"injected": self._injected} if self._injected else {})}
        return replace(usage, faults=faults)

    def _strikes(self, chance: float) -> bool:
        with self._lock:
            strikes = self.is_down or self._random.random() < chance
            self._injected += strikes
        return strikes


class GatedStore(MemoryBlockStore):
    """`entered`: a write has begun. `gate`: it may store. `stored`: it has. `exit`: it may return (open at first).

    `batches`: records of each write, in order. `defect`: raised instead of storing, against the contract.
    """

    def __init__(self, quota_bytes: int | None = None) -> None:
        super().__init__(quota_bytes)
        self.entered, self.gate, self.stored, self.exit = Event(), Event(), Event(), Event()
        self.exit.set()
        self.batches: list[int] = []
        self.defect: Exception | None = None

    def put(self, records: Sequence[Record]) -> PutOutcome:
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        self.batches.append(len(records))
        if self.defect is not None:
            raise self.defect
        outcome = super().put(records)
        self.stored.set()
        assert self.exit.wait(PATIENCE_S)
        return outcome

    def open(self) -> None:
        """Let everything through from now on."""
        self.gate.set()
        self.exit.set()


READS = ("keys", "followers", "get", "usage")


class HangingStore:
    """A BlockStore that hands every call on, but holds those that hang. `entered`: how often each was called."""

    def __init__(self, store: BlockStore | None = None) -> None:
        self._store = store or MemoryBlockStore()
        self._changed = threading.Condition()
        self._hanging: set[str] = set()
        self.entered: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)

        def call(*arguments: Any, **named: Any) -> Any:
            with self._changed:
                self.entered[name] += 1
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: name not in self._hanging, PATIENCE_S), f"{name} hung for ever"
            return operation(*arguments, **named)

        return call

    def prepare(self, records: Sequence[Record]) -> PreparedPut:
        """What hangs is to put."""
        return partial(self.put, records)

    def hang(self, operations: Sequence[str] = READS) -> None:
        with self._changed:
            self._hanging.update(operations)
            self.entered.clear()

    def recover(self) -> None:
        """What hangs goes on."""
        with self._changed:
            self._hanging.clear()
            self._changed.notify_all()

    def wait_until_entered(self, operation: str, count: int = 1) -> None:
        with self._changed:
            reached = self._changed.wait_for(lambda: self.entered[operation] >= count, PATIENCE_S)
            assert reached, f"{operation} was not called {count} times"


__all__ = ("PATIENCE_S", "READS", "HangingStore")
