"""The prefix cache of a service: hot tier, store, the queue between them, the workers; opened and closed together.

Closing waits for nothing that hangs: threads in a call that does not return are left behind, and end with the process.
"""

from collections.abc import Callable
from threading import Thread
from time import monotonic

from adapters.system.memory_probe import SystemMemory
from application.events import FaultObserved
from application.ports.block_store import BlockStore
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.daemon_threads import DaemonThreads
from application.services.prefix.cache import PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.landing_store import Land, LandingStore
from application.services.prefix.store_workers import StoreWorkers
from application.services.prefix.stored_tier import StoredTier
from application.services.prefix.tiers import PrefixTiers
from application.services.prefix.write_behind import WriteBehind
from application.services.prefix.write_behind_store import WriteBehindStore
from application.services.prefix.write_queue import QueueCounts
from application.settings import Settings
from domain.block_grid import BlockGrid
from domain.scheduling import StepLimits

NUM_READERS = 2
"""Workers that read and decode records; each also uses the store's own threads."""

CLOSE_TIMEOUT_S = 5.0
"""How long closing waits for reads, and then, if they hang, for the store to close."""

QUEUE_SHARE = 0.1
"""Share of memory that captured state waiting for the store may take; it is in the hot tier as well, mostly."""


class CacheTiers:
    """Opened on construction. `store` is None when nothing is persisted."""

    def __init__(
        self,
        settings: Settings,
        limits: StepLimits,
        store: BlockStore | None,
        events: EventSink,
        clock: Clock,
        land: Land | None = None,
    ) -> None:
        total_bytes = SystemMemory().read().total_bytes
        hot_bytes = settings.store.hot_tier.resolve(total_bytes)
        self.store = store
        self.writer: WriteBehind | None = None
        self._events, self._clock = events, clock
        readers = DaemonThreads(NUM_READERS, "cairn-restore")
        lookups = DaemonThreads(1, "cairn-lookup")
        upkeep = DaemonThreads(1, "cairn-upkeep")
        hashing = DaemonThreads(1, "cairn-hash")
        self._threads = (readers, lookups, upkeep, hashing)
        self._workers = workers = StoreWorkers(
            clock, events, readers, lookups, upkeep, timeout_s=settings.store.read_timeout_s
        )
        stored: list[StoredTier] = []
        if store is not None:
            self.writer = WriteBehind(store, events, clock, max_bytes=int(total_bytes * QUEUE_SHARE))
            readable = store if land is None else LandingStore(store, land, events, clock)
            stored = [StoredTier("store", WriteBehindStore(readable, self.writer), self.writer, workers)]
        self._hot = HotTier(hot_bytes)
        tiers = PrefixTiers(self._hot, stored, workers)
        is_enabled = bool(hot_bytes) or store is not None
        cache = settings.cache
        grid = BlockGrid(settings.engine.block_size, limits.grid, cache.exact)
        self.prefix_cache = PrefixCache(tiers, clock, events, grid, hashing, is_enabled=is_enabled, salt=cache.salt)

    def mark(self) -> int:
        """For `is_settled`: everything captured so far. Any thread; never blocks."""
        return self.writer.queue.mark() if self.writer is not None else 0

    def is_settled(self, mark: int) -> bool:
        """Whether everything captured up to `mark` is stored or dropped. Any thread; never blocks."""
        return self.writer is None or self.writer.queue.is_settled(mark)

    async def make_durable(self) -> None:
        """Make what is stored as durable as the setting allows. Event loop only. Raises StoreUnresponsive."""
        if self.store is not None:
            await self._workers.await_upkeep(self.store.flush)

    def close(self, timeout_s: float) -> QueueCounts | None:
        """Write what is queued for at most `timeout_s`, then release everything. After the engine stopped.

        A store whose reads return has as long again to close, because what it holds back may be much.
        """
        for threads in self._threads:
            threads.shutdown(wait=False, cancel_futures=True)
        counts = self.writer.close(timeout_s) if self.writer is not None else None
        patience_s = min(timeout_s, CLOSE_TIMEOUT_S)
        deadline_s = monotonic() + patience_s
        are_done = [threads.join(max(0.0, deadline_s - monotonic())) for threads in self._threads]
        is_closed = self.store is None or _ends(self.store.close, timeout_s if all(are_done) else patience_s)
        if not (all(are_done) and is_closed):
            message = "the store's volume hangs: what was under way is left behind"
            self._events.emit(FaultObserved("store.close", message, self._clock.now_ns()))
        self._hot.resize(0)  # its arrays must be gone before the backend's library is torn down
        return counts


def _ends(work: Callable[[], object], timeout_s: float) -> bool:
    """Do something that may hang; False when it takes longer, and then it is left alone."""
    thread = Thread(target=work, name="cairn-store-end", daemon=True)
    thread.start()
    thread.join(max(0.0, timeout_s))
    return not thread.is_alive()


__all__ = ("CacheTiers",)
