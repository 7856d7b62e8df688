"""Prefix caches for tests that are about something else: off, or in RAM only."""

from adapters.fake.environment import FakeClock
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.lane import Lane
from application.services.prefix.cache import PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.store_tier import StoreTier
from application.services.prefix.tiers import PrefixTiers
from domain.prefix.prompt_content import BlockGrid
from tests.support.telemetry.recording import RecordingEvents


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
    tiers = PrefixTiers(HotTier(hot_bytes), StoreTier(clock, events), hashing=Lane("hash", 1))
    return PrefixCache(tiers, BlockGrid(block_size, grid), is_enabled=is_enabled)
