"""Measurements emitted every few seconds: how full the tiers are, and whether the server is ready.

Tiers are asked through the engine, so that the compute thread never waits. A failed reading is a fault, and tried again
the next time. Event loop only.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

from application.events import FaultObserved
from application.events.cache import CacheMeasured, TierReading
from application.events.health import ReadinessMeasured
from application.ports.cache_stats import CacheStats, QueueCounts
from application.ports.clock import Clock
from application.ports.engine import Engine
from application.ports.event_sink import EventSink
from application.services.faults import described

EVERY_S = 10.0


class Health(Protocol):
    """The part of a health check that is reported."""

    @property
    def is_ready(self) -> bool: ...


class RegularReports:
    """`run` until it is cancelled."""

    def __init__(
        self,
        engine: Engine,
        check_health: Callable[[], Health],
        events: EventSink,
        clock: Clock,
        every_s: float = EVERY_S,
    ) -> None:
        self._engine = engine
        self._check_health = check_health
        self._events = events
        self._clock = clock
        self._every_s = every_s

    async def run(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(self._every_s)

    async def report(self) -> None:
        """Once, now."""
        self._events.emit(ReadinessMeasured(self._check_health().is_ready, self._clock.now_ns()))
        try:
            stats = await self._engine.cache.stats()
        except Exception as error:
            self._events.emit(FaultObserved("cache.stats", described(error), self._clock.now_ns()))
        else:
            queue = stats.queue or QueueCounts()
            readings = tuple(_readings(stats))
            self._events.emit(CacheMeasured(readings, queue.queued_bytes, self._clock.now_ns(), queue.lag_s))


def _readings(stats: CacheStats) -> Iterator[TierReading]:
    live, hot, store = stats.live, stats.hot, stats.store
    if live is not None:
        yield TierReading(
            name="live",
            num_blocks=0,
            num_snapshots=live.num_states,
            used_bytes=live.used_bytes,
            limit_bytes=live.budget_bytes,
            evicted=live.evicted,
        )
    yield TierReading(
        name="hot",
        num_blocks=hot.num_blocks,
        num_snapshots=hot.num_snapshots,
        used_bytes=hot.used_bytes,
        limit_bytes=hot.budget_bytes,
        evicted=hot.evicted,
    )
    if store is not None:
        yield TierReading(
            name="store",
            num_blocks=sum(model.num_blocks for model in store.models),
            num_snapshots=sum(model.num_snapshots for model in store.models),
            used_bytes=store.stored_bytes,
            limit_bytes=store.quota_bytes,
            evicted=store.evicted,
        )
