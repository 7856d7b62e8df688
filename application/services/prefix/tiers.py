"""The tiers of the prefix cache, with the index and the state that all sequences of one cache share.

    tier    keeps                                        a sequence takes it by          blocks
    live    whole states of ended sequences              moving the state (`take_over`)  never
    hot     records in memory                            copying (`acquire`, restore)    never
    store   records behind a write queue, on a volume    reading by a worker (fetch)     for the volume
    shared  records on a server that others use too      reading by a worker (fetch)     never longer than a deadline

The hot tier, the queue and the store report each record that they gain or lose to the index, so a lookup needs no I/O
of theirs. The shared tier is asked.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from application.ports.cache_stats import Cleared
from application.services.event_sinks import EventFanOut
from application.services.lane import Lane
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.indexes import Indexes
from application.services.prefix.live_tier import LiveTier
from application.services.prefix.shared.tier import SharedTier
from application.services.prefix.store_tier import StoreRead, StoreTier
from domain.ids import RequestId, SequenceId
from domain.prefix.fingerprint import NamespaceFilter
from domain.prefix.index import PrefixIndex
from domain.prefix.record import NamespaceInfo, Record, RecordKey


class PrefixTiers:
    """The tiers and their index. Any thread, except `load`, `open` and `running`, which belong to the compute thread.

    `open`: the sequences that have not ended. `running`: those of them that were admitted. `on_ready`: called by
    workers when a lookup or a fetch can continue.
    """

    def __init__(
        self,
        hot: HotTier,
        store: StoreTier,
        live: LiveTier | None = None,
        *,
        hashing: Lane,
        shared: SharedTier | None = None,
    ) -> None:
        """`hashing` hashes prompts, which takes milliseconds and always ends. `shared`: None where nothing is
        shared."""
        self.hot = hot
        self.live = live or LiveTier()
        self.memory = self.live.memory
        self.store = store
        self.shared = shared
        if shared is not None and not store.uploads_on_compute_thread:
            shared.uploaded = store.uploaded
        self.hashing = hashing
        self.clock, self.events = store.clock, EventFanOut(store.events)
        self._num_confirmed: int | None = None  # offers to the store; None: they wait for nothing
        self._marks = 0, 0  # the number of offers before the last step that computed, and after it
        self.open: set[SequenceId] = set()
        self.running: dict[SequenceId, Any] = {}
        self.on_ready: Callable[[], None] = lambda: None
        self.indexes = Indexes(store.writer.store.keys if store.writer is not None else None)
        self._loads: WeakKeyDictionary[PrefixIndex, StoreRead[None]] = WeakKeyDictionary()
        hot.indexes = self.indexes
        if store.writer is not None:
            store.writer.report_to(self.indexes)

    @property
    def keeps_records(self) -> bool:
        """True when captured records are available at once: from memory, or from the write queue."""
        return bool(self.hot.budget_bytes) or self.store.writer is not None

    @property
    def has_deadline(self) -> bool:
        """True while a lookup waits for an answer that may be late: the compute thread has to look again soon."""
        return self.shared is not None and self.shared.is_awaited

    def wake(self) -> None:
        self.on_ready()

    def load(self, epoch: PrefixIndex) -> StoreRead[None] | None:
        """Lets a worker read the keys that the store has of the namespace, once for all sequences that wait for it.
        Returns None when there is nothing to wait for."""
        if epoch.is_known:
            return None
        load = self._loads.get(epoch)
        if load is None or load.is_done:
            load = self.store.read(partial(self.indexes.load, epoch), self.wake)
            if load is not None:
                self._loads[epoch] = load
        return load

    def offer(
        self,
        info: NamespaceInfo,
        records: Sequence[Record],
        id: RequestId,
        shared: Mapping[RecordKey, Record | None],
    ) -> bool:
        """Queues records of one namespace for the store, parents first, all or none; after a refusal nothing that
        follows them can be stored. Those that it took are offered to the shared tier, but for what came from there
        (`shared`), which the store gets as it arrived. `id`: the request that computed them."""
        writer = self.store.writer
        if writer is None or not writer.offer(info, [shared.get(record.key) or record for record in records], id):
            return False
        fresh = [record for record in records if record.key not in shared]
        if self.shared is not None and fresh:
            self.shared.queue.hold(writer.num_offers, info, fresh, id)
            if self._num_confirmed is None:
                self.shared.queue.confirm(writer.num_offers)
        return True

    def confirm(self, finish: Callable[[], None] | None = None) -> None:
        """Called before the first step and after each: the store and other servers get what was captured before the
        last two that computed, whose passes have met every error of the device by now. `finish`: verifies all that was
        captured; for a step that computed nothing, and for the end. Compute thread only."""
        if (writer := self.store.writer) is None:
            return
        at, before = writer.num_offers, self._num_confirmed
        if finish is None:
            self._num_confirmed, self._marks = self._marks[0], (self._marks[1], at)
        else:
            if self._num_confirmed is None or self._num_confirmed < at:
                finish()
            self._num_confirmed, self._marks = at, (at, at)
        if self._num_confirmed != before:
            writer.confirm(self._num_confirmed)
            if self.shared is not None:
                self.shared.queue.confirm(self._num_confirmed)

    def discard(self, keys: Sequence[RecordKey]) -> None:
        """Drops records from memory and, with all that follows them, from the store."""
        self.hot.drop(keys)
        self.store.drop(keys)

    def clear(self, choice: NamespaceFilter) -> Cleared:
        """Remove everything of the chosen namespaces, for good. Blocks: not for the compute thread. Sequences that
        began before keep nothing from then on."""

        def clear() -> Cleared:
            ended = self.indexes.end(choice.includes)
            self.live.note_ended()
            return self.hot.clear(ended).plus(self.store.clear(choice))

        return clear() if self.shared is None else self.shared.clear(choice, clear)
