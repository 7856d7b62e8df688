"""The prefix cache of an engine: hot tier, store, the queue between them, the workers; opened and closed together.

Closing waits for nothing that hangs: threads in a call that does not return are left behind, and end with the process.
"""

import logging
from collections.abc import Callable
from threading import Thread
from time import monotonic

from adapters.system.memory_probe import SystemMemory
from application.events import FaultObserved
from application.ports.block_store import BlockStore
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.daemon_threads import DaemonThreads
from application.services.prefix.cache import CacheRules, PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.landing_store import Land, LandingStore
from application.services.prefix.store_workers import StoreWorkers
from application.services.prefix.tiers import PrefixTiers
from application.services.prefix.write_behind import WriteBehind
from application.services.prefix.write_behind_store import WriteBehindStore
from application.services.prefix.write_queue import SHUTDOWN
from application.services.token_side.cache_access import CacheAccess
from application.settings import Settings
from domain.scheduling import StepLimits

NUM_READERS = 2
"""Workers that read and decode records; each also uses the store's own threads."""

FLUSH_TIMEOUT_S = 30.0
"""How long shutting down may write captured state that still waits for the store."""

CLOSE_TIMEOUT_S = 5.0
"""How long closing waits for reads, and then, if they hang, for the store to close."""

QUEUE_SHARE = 0.1
"""Share of memory that captured state waiting for the store may take; it is in the hot tier as well, mostly."""

_logger = logging.getLogger("cairn")


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
        self._threads = (readers, lookups, upkeep)
        workers = StoreWorkers(clock, events, readers, lookups, upkeep, timeout_s=settings.store.read_timeout_s)
        if store is not None:
            self.writer = WriteBehind(store, events, clock, max_bytes=int(total_bytes * QUEUE_SHARE))
            readable = store if land is None else LandingStore(store, land, events, clock)
            store = WriteBehindStore(readable, self.writer)
        self._hot = HotTier(hot_bytes)
        tiers = PrefixTiers(self._hot, store, self.writer, workers)
        is_enabled = bool(hot_bytes) or store is not None
        cache = settings.cache
        rules = CacheRules(settings.engine.block_size, limits.grid, cache.exact, is_enabled, cache.salt)
        self.prefix_cache = PrefixCache(tiers, clock, events, rules)
        self.access = CacheAccess(self.prefix_cache, self.store, self.writer, workers)

    def close(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
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
        if counts is not None and (lost := counts.dropped.get(SHUTDOWN, 0)):
            _logger.warning("%d records could not be stored within %.0f s", lost, timeout_s)


def _ends(work: Callable[[], object], timeout_s: float) -> bool:
    """Do something that may hang; False when it takes longer, and then it is left alone."""
    thread = Thread(target=work, name="cairn-store-end", daemon=True)
    thread.start()
    thread.join(max(0.0, timeout_s))
    return not thread.is_alive()


__all__ = ("CacheTiers",)
