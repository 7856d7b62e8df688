"""Readings of the use of the tiers: for a page that polls every second, and emitted with readiness as events.

Tiers are asked through the engine, so that the compute thread never waits for the store. A page gets the last reading
with its age while the store does not answer; a failed report is a fault, and repeated after the usual interval.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from application.events import CacheMeasured, FaultObserved, ReadinessMeasured, TierReading
from application.ports.cache_stats import CacheStats
from application.ports.clock import Clock
from application.ports.document_store import DocumentUsage
from application.ports.engine import Engine
from application.ports.event_sink import EventSink
from application.services.faults import described
from domain.errors import DomainError, StoreUnresponsive

FRESH_S = 1.0
"""The age up to which a reading is given again."""

PATIENCE_S = 0.5
"""The time a caller waits for a new reading before it gets the last one."""

REPORT_EVERY_S, IDLE_REPORT_EVERY_S = 10.0, 30.0
"""The interval of reports, and that of a ready server whose engine had nothing to do since the last one."""


@dataclass(frozen=True, slots=True)
class CacheReading:
    """`documents`: None while their store does not answer."""

    stats: CacheStats
    documents: DocumentUsage | None
    at_ns: int


class CacheReadings:
    """Event loop only. Concurrent callers share one reading."""

    def __init__(self, engine: Engine, documents: Callable[[], Awaitable[DocumentUsage]], clock: Clock) -> None:
        self._engine = engine
        self._documents = documents
        self._clock = clock
        self._last: CacheReading | None = None
        self._reading: asyncio.Task[None] | None = None

    async def latest(self) -> CacheReading | None:
        """The last reading; None before the first."""
        if self._last is not None and self._clock.now_ns() - self._last.at_ns < FRESH_S * 1e9:
            return self._last
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        await asyncio.wait([self._reading], timeout=PATIENCE_S)
        return self._last

    async def _read(self) -> None:
        try:
            stats = await self._engine.cache.stats()
            try:
                documents = await self._documents()
            except StoreUnresponsive:
                documents = None
            self._last = CacheReading(stats, documents, self._clock.now_ns())
        except DomainError:  # the engine is gone or stopping: the last reading is all there is
            pass
        finally:
            self._reading = None


class Health(Protocol):
    """The part of a health check that is reported."""

    @property
    def is_ready(self) -> bool: ...


class RegularReports:
    """Emits ReadinessMeasured and CacheMeasured regularly, from `run` until that is cancelled."""

    def __init__(self, engine: Engine, check_health: Callable[[], Health], events: EventSink, clock: Clock) -> None:
        self._engine = engine
        self._check_health = check_health
        self._events = events
        self._clock = clock
        self._reported_ns = 0

    async def run(self) -> None:
        while True:
            pause_s = await self.report()
            await asyncio.sleep(pause_s)

    async def report(self) -> float:
        """Emits one report now. Returns the seconds until the next one."""
        last_ns, self._reported_ns = self._reported_ns, self._clock.now_ns()
        status, is_ready = self._engine.status(), self._check_health().is_ready
        is_idle = is_ready and not (status.is_busy or status.num_calls) and status.last_step_ns < last_ns
        self._events.emit(ReadinessMeasured(is_ready, self._reported_ns))
        try:
            stats = await self._engine.cache.stats()
        except Exception as error:
            self._events.emit(FaultObserved("cache.stats", described(error), self._clock.now_ns()))
        else:
            lag_s = 0.0 if stats.queue is None else stats.queue.lag_s
            available = None if stats.shared is None else int(stats.shared.is_available)
            self._events.emit(CacheMeasured(tuple(_tiers(stats)), self._clock.now_ns(), lag_s, available))
        return IDLE_REPORT_EVERY_S if is_idle else REPORT_EVERY_S


def _tiers(stats: CacheStats) -> Iterator[TierReading]:
    live, hot, store = stats.live, stats.hot, stats.store
    if live is not None:
        yield TierReading("live", live.used_bytes, live.budget_bytes, live.evicted)
    yield TierReading("hot", hot.used_bytes, hot.budget_bytes, hot.evicted)
    if store is not None:
        yield TierReading("store", store.stored_bytes, store.quota_bytes, store.evicted)
