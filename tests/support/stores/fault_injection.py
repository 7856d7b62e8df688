"""A block store that fails with given probabilities, in every way the contract allows and in no other.

Reads may miss present records, and writes may be refused; no wrong record is returned, and no refused one is stored.
The draws come from a seed, so a failing run replays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from threading import Lock

from adapters.decorators.forwarding_store import ForwardingStore
from application.ports.block_store import BlockStore, EraseReport, NoteGone, PutOutcome, StoreUsage
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import Namespace, NamespaceInfo, Record, RecordKey


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
