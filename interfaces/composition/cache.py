"""The prefix cache of a service: hot tier, store, the queue between them, the workers; opened and closed together."""

from concurrent.futures import ThreadPoolExecutor

from adapters.system.memory_probe import SystemMemory
from application.ports.block_store import BlockStore
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.prefix.cache import CacheRules, PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.landing_store import Land, LandingStore
from application.services.prefix.tiers import PrefixTiers
from application.services.prefix.write_behind import WriteBehind
from application.services.prefix.write_behind_store import WriteBehindStore
from application.services.prefix.write_queue import QueueCounts
from application.settings import Settings
from domain.scheduling import StepLimits

NUM_READERS = 2
"""Workers that read and decode records; each also uses the store's own threads."""

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
        self._workers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="cairn-restore")
        if store is not None:
            self.writer = WriteBehind(store, events, clock, max_bytes=int(total_bytes * QUEUE_SHARE))
            readable = store if land is None else LandingStore(store, land, events, clock)
            store = WriteBehindStore(readable, self.writer)
        self._hot = HotTier(hot_bytes)
        tiers = PrefixTiers(self._hot, store, self.writer, self._workers)
        is_enabled = bool(hot_bytes) or store is not None
        cache = settings.cache
        rules = CacheRules(settings.engine.block_size, limits.grid, cache.exact, is_enabled, cache.salt)
        self.prefix_cache = PrefixCache(tiers, clock, events, rules)

    def mark(self) -> int:
        """For `is_settled`: everything captured so far. Any thread; never blocks."""
        return self.writer.queue.mark() if self.writer is not None else 0

    def is_settled(self, mark: int) -> bool:
        """Whether everything captured up to `mark` is stored or dropped. Any thread; never blocks."""
        return self.writer is None or self.writer.queue.is_settled(mark)

    def make_durable(self) -> None:
        """Make what is stored as durable as the setting allows. Blocks on the store."""
        if self.store is not None:
            self.store.flush()

    def close(self, timeout_s: float) -> QueueCounts | None:
        """Write what is queued for at most `timeout_s`, then release everything. After the engine stopped."""
        self._workers.shutdown(wait=True, cancel_futures=True)
        counts = self.writer.close(timeout_s) if self.writer is not None else None
        if self.store is not None:
            self.store.close()
        self._hot.resize(0)  # its arrays must be gone before the backend's library is torn down
        return counts


__all__ = ("CacheTiers",)
