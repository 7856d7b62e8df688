"""The tiers of the prefix cache: live states, the hot tier, and the store behind its queue; and the index of them all.

What enters or leaves the hot tier, the queue and the store is told to the index by its key, so a lookup asks nobody.
The store may be slow or hang: its records are only ever read by workers that may be given up on.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

from application.ports.block_store import EraseReport
from application.services.faults import described
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.indexes import Epoch, Indexes
from application.services.prefix.live_states import LiveStates
from application.services.prefix.store_lanes import StoreLanes, StoreRead
from application.services.prefix.write_behind import WriteBehind
from domain.ids import GroupIndex
from domain.prefix.hashing import BlockChain
from domain.prefix.index import ANYWHERE
from domain.prefix.match import PrefixMatch, ReuseRules
from domain.prefix.namespace_choice import NamespaceChoice
from domain.prefix.payload import StatePayload
from domain.prefix.record import NamespaceInfo, Record, RecordKey

HOT = "hot"

Land = Callable[[Sequence[StatePayload]], Sequence[StatePayload]]
"""The same states in the compute backend's memory, or as they are where that is as good. Any thread."""

StateRead = StoreRead[Sequence[Record | None]]


@dataclass(frozen=True, slots=True)
class StoredTier:
    """The store with the queue in front of it. What is read is landed: brought to where restoring takes it from
    fastest, by the worker that read it or, where only that may, by the compute thread (`lands_on_compute_thread`),
    which does so read by read while workers read on. A read that cannot be landed is given on as it is:
    restoring it costs more, and is right all the same. `land`: None where nothing is gained."""

    name: str
    writer: WriteBehind
    lanes: StoreLanes
    land: Land | None = None
    lands_on_compute_thread: bool = False

    def fetch(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex]], on_done: Callable[[], None]
    ) -> StateRead | None:
        """Read records in a worker; None while the store is stuck."""
        return self.lanes.read(partial(self._read, keys, groups), on_done)

    def discard(self, keys: Sequence[RecordKey]) -> None:
        """Let records go, with all that follows them; a worker does that."""
        if keys:
            self.lanes.keep_up(partial(self.writer.delete, keys))

    def _read(self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex]]) -> Sequence[Record | None]:
        started_ns = self.lanes.now_ns()
        found = self.writer.get(keys, groups)
        self.lanes.read_records(found, started_ns)
        return found if self.lands_on_compute_thread else self.landed(found)

    def landed(self, records: Sequence[Record | None]) -> Sequence[Record | None]:
        """Records of one read, landed."""
        if self.land is None:
            return records
        payloads = [payload for record in records if record is not None for payload in record.groups.values()]
        try:
            landed = iter(self.land(payloads))
        except Exception as error:  # out of device memory, most likely
            self.lanes.fault("prefix.land", described(error))
            return records
        return [
            record and replace(record, groups={index: next(landed) for index in record.groups}) for record in records
        ]


class PrefixTiers:
    """Any thread. `store`: None when nothing is persisted. `live`: beside the others, for it holds no records."""

    def __init__(
        self, hot: HotTier, store: StoredTier | None, lanes: StoreLanes, live: LiveStates | None = None
    ) -> None:
        """`lanes`: for work that concerns the store."""
        self.hot = hot
        self.live = live or LiveStates()
        self.store = store
        self.lanes = lanes
        self.indexes = Indexes(store.writer.store.keys if store is not None else None)
        self._loads: WeakKeyDictionary[Epoch, StoreRead[None]] = WeakKeyDictionary()
        hot.indexes = self.indexes
        if store is not None:
            store.writer.report_to(self.indexes)

    @property
    def keeps_anything(self) -> bool:
        """Whether what is captured can be had at once: from memory, or on its way to the store."""
        return bool(self.hot.budget_bytes) or self.store is not None

    def epoch(self, info: NamespaceInfo) -> Epoch:
        """The one that lasts."""
        return self.indexes.epoch(info)

    def load(self, epoch: Epoch, on_done: Callable[[], None]) -> StoreRead[None] | None:
        """Have a worker read what the store holds of it; one does so for all that wait. None: there is nothing to wait
        for. Compute thread."""
        if epoch.is_known:
            return None
        load = self._loads.get(epoch)
        if load is None or load.is_done:
            load = self.lanes.read(partial(self.indexes.load, epoch), on_done)
            if load is not None:
                self._loads[epoch] = load
        return load

    def match(
        self,
        epoch: Epoch,
        chain: BlockChain,
        rules: ReuseRules,
        absent: Collection[RecordKey] = (),
        place: int = ANYWHERE,
    ) -> PrefixMatch:
        """How far the prompt can be restored. No I/O."""
        return self.indexes.match(epoch, chain, rules, absent, place)

    def discard(self, keys: Sequence[RecordKey]) -> None:
        """Let records go, with all that follows them in the store."""
        self.hot.remove(keys)
        if self.store is not None:
            self.store.discard(keys)

    def touch(self, keys: Sequence[RecordKey]) -> None:
        """Note a use in the store, from a worker. Memory notes its own."""
        if self.store is not None and keys:
            self.lanes.keep_up(partial(self.store.writer.store.touch, keys))

    def clear(self, choice: NamespaceChoice) -> tuple[int, EraseReport]:
        """Remove everything of these namespaces, for good: from memory, queue and store. Returns how many records
        memory had, and what the store says. Blocks: not for the compute thread.

        What runs and was begun before leaves nothing behind from then on.
        """
        gone = self.indexes.end(choice.includes)
        self.live.note_cleared()
        num_hot = self.hot.forget(gone)
        if self.store is None:
            return num_hot, EraseReport(0, 0)
        return num_hot, self.store.writer.erase(None if choice.is_everything else choice.includes)
