"""Prefix caches for tests that are about something else: off, or in RAM only."""

from adapters.fake.clock import FakeClock
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.lane import Lane
from application.services.prefix.cache import PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.live_states import LiveStates
from application.services.prefix.store_lanes import StoreLanes
from application.services.prefix.tiers import Land, PrefixTiers, StoredTier
from application.services.prefix.write_behind import WriteBehind
from domain.prefix.block_grid import BlockGrid
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
    tiers = prefix_tiers(HotTier(hot_bytes), None, StoreLanes(clock, events))
    return PrefixCache(
        tiers=tiers,
        clock=clock,
        events=events,
        grid=BlockGrid(block_size, grid),
        hashing=Lane("hash", 1),
        is_enabled=is_enabled,
    )


def prefix_tiers(
    hot: HotTier,
    writer: WriteBehind | None,
    lanes: StoreLanes,
    kind: type[PrefixTiers] = PrefixTiers,
    live: LiveStates | None = None,
    land: Land | None = None,
) -> PrefixTiers:
    """Memory, and behind it the store that `writer` writes to, if there is one. `land`: on the compute thread."""
    lands_there = land is not None
    store = StoredTier("store", writer, lanes, land, lands_there) if writer is not None else None
    return kind(hot, store, lanes, live)
