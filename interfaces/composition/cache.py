"""The prefix cache of an engine: hot tier, store, the queue between them, the workers; opened and closed together.

Closing does not wait for hanging calls: threads in a call that does not return are abandoned, and end with the process.
"""

import logging
from concurrent.futures import wait

from adapters.system.machine import SystemMemory
from application.events import FaultObserved
from application.ports.block_store import BlockStore
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.kv_events import KvEventPublisher
from application.ports.shared_store import SharedStore
from application.services.faults import described
from application.services.lane import Lane
from application.services.prefix.block_feed import BlockFeed
from application.services.prefix.cache import PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.live_tier import LiveTier
from application.services.prefix.shared.access import SharedAccess, SharedQueue
from application.services.prefix.shared.tier import SharedTier
from application.services.prefix.store_tier import StoreTier, Upload
from application.services.prefix.tiers import PrefixTiers
from application.services.prefix.write_behind import SHUTDOWN, WriteBehind
from application.settings import Settings
from domain.memory.ledger import MemoryLimits
from domain.prefix.prompt_content import BlockGrid
from domain.scheduling.step_values import StepLimits
from interfaces.composition.store import READ_TIMEOUT_S

FLUSH_TIMEOUT_S = 25.0
"""The limit on writing captured state that still waits for the store when the server shuts down."""

CLOSE_TIMEOUT_S = 5.0
"""The limit on waiting for reads at closing, and then, if they hang, for the store to close."""

QUEUE_SHARE = 0.1
"""The share of memory, a device's or the host's if that has less, for captured state that waits for the store; most of
it is in the hot tier as well."""

SHARED_QUEUE_SHARE = 0.05
"""The share of memory for captured state that waits for the shared store; what finds no room is not shared."""

_logger = logging.getLogger("cairn")


class CacheTiers:
    """The prefix cache of an engine and its tiers. Opened on construction. `store` is None when nothing is
    persisted."""

    def __init__(
        self,
        settings: Settings,
        limits: StepLimits,
        store: BlockStore | None,
        events: EventSink,
        clock: Clock,
        upload: Upload | None = None,
        memory: MemoryLimits | None = None,
        *,
        uploads_on_compute_thread: bool = False,
        read_timeout_s: float = READ_TIMEOUT_S,
        shared: SharedStore | None = None,
        publisher: KvEventPublisher | None = None,
    ) -> None:
        """`upload`, `uploads_on_compute_thread`: as in Backend. `memory`: the memory that shares refer to; None: all of
        the host's. `read_timeout_s`: the limit on one read of some records; beyond it prompts are computed without the
        store. `shared`: the store that other servers share. `publisher`: of KV events; None: nobody is published."""
        host_bytes = SystemMemory().read().total_bytes or 0
        total_bytes = memory.total_bytes if memory is not None else host_bytes
        hot_bytes = settings.store.hot_tier.resolve(total_bytes)
        self.store = store
        self.writer: WriteBehind | None = None
        self._events, self._clock = events, clock
        self._hashing = Lane("hash", 1)
        if store is not None:
            max_bytes = int(min(total_bytes, host_bytes or total_bytes) * QUEUE_SHARE)
            self.writer = WriteBehind(store, events, clock, max_bytes=max_bytes)
        self._store_tier = StoreTier(
            clock,
            events,
            self.writer,
            timeout_s=read_timeout_s,
            upload=upload,
            uploads_on_compute_thread=uploads_on_compute_thread,
        )
        cache = settings.cache
        self.hot = HotTier(hot_bytes)
        self.live = LiveTier(cache.live_states.resolve(total_bytes), self._live_fault)
        self.shared: SharedTier | None = None
        if shared is not None:
            access = SharedAccess(shared, events, clock, settings.store.shared_deadline_s)
            queue = SharedQueue(access, int(min(total_bytes, host_bytes or total_bytes) * SHARED_QUEUE_SHARE))
            self.shared = SharedTier(access, queue)
        tiers = PrefixTiers(self.hot, self._store_tier, self.live, hashing=self._hashing, shared=self.shared)
        is_enabled = bool(hot_bytes) or store is not None
        grid = BlockGrid(settings.engine.block_size, limits.grid, cache.exact)
        self._publisher, feed = publisher, None
        if publisher is not None:
            feed = BlockFeed(tiers, cache.events_block)
            publisher.start(feed)
        self.prefix_cache = PrefixCache(tiers, grid, is_enabled=is_enabled, salt=cache.salt, feed=feed)

    def _live_fault(self, error: Exception) -> None:
        self._events.emit(FaultObserved("cache.live", described(error), self._clock.now_ns()))

    def queued_bytes(self) -> int:
        """Returns the bytes of captured state that waits for the stores, encoded copies for the local one included."""
        shared_bytes = self.shared.queue.queued_bytes if self.shared is not None else 0
        return shared_bytes + (self.writer.held_bytes if self.writer is not None else 0)

    def close(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Writes queued records for at most `timeout_s`, then releases everything. Called after the engine has stopped.

        A store whose reads return may use the rest of that time to close, because it may have much to write. All of it
        takes `timeout_s` and three times CLOSE_TIMEOUT_S at most.
        """
        began_ns = self._clock.now_ns()
        if self._publisher is not None:
            self._publisher.close()
        self._hashing.close()
        self._store_tier.close()
        counts = self.writer.close(timeout_s) if self.writer is not None else None
        if self.shared is not None:
            self.shared.close(min(timeout_s, CLOSE_TIMEOUT_S))
        patience_s = min(timeout_s, CLOSE_TIMEOUT_S)
        are_done = self._store_tier.join(patience_s)
        left_s = timeout_s - (self._clock.now_ns() - began_ns) / 1e9
        is_closed = self.store is None or _closes(self.store, max(patience_s, left_s) if are_done else patience_s)
        if not (are_done and is_closed):
            message = "the store's volume hangs: unfinished reads and writes are left behind"
            self._events.emit(FaultObserved("store.close", message, self._clock.now_ns()))
        self.hot.resize(0)  # its arrays must be freed before the backend's library is torn down
        if counts is not None and (lost := counts.dropped.get(SHUTDOWN, 0)):
            _logger.warning("%d records could not be stored within %.0f s", lost, timeout_s)


def _closes(store: BlockStore, timeout_s: float) -> bool:
    """Closes a store that may hang; returns False when it takes longer, and abandons it then."""
    lane = Lane("store-end", 1)
    closing = wait([lane.submit(store.close)], timeout_s)
    lane.close()
    return not closing.not_done
