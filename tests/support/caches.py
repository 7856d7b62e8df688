"""Prefix caches for tests that are about something else: off, or in RAM only."""

from concurrent.futures import ThreadPoolExecutor

from adapters.fake.clock import FakeClock
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.prefix.cache import PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.store_workers import StoreWorkers
from application.services.prefix.tiers import PrefixTiers
from domain.block_grid import BlockGrid
from tests.support.recording import RecordingEvents


def prefix_cache(
    events: EventSink | None = None,
    clock: Clock | None = None,
    *,
    is_enabled: bool = False,
    hot_bytes: int = 1 << 28,
    block_size: int = 16,
    grid: int = 32,
) -> PrefixCache:
    """Without a store; `is_enabled` False: nothing is ever reused."""
    events, clock = events or RecordingEvents(), clock or FakeClock()
    workers = ThreadPoolExecutor(1)
    tiers = PrefixTiers(HotTier(hot_bytes), [], StoreWorkers(clock, events, workers))
    return PrefixCache(tiers, clock, events, BlockGrid(block_size, grid), workers, is_enabled=is_enabled)


__all__ = ("prefix_cache",)
