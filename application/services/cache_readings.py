"""How full the tiers are, for a page that asks every second: read once for all who ask, and never waited for long.

While the store does not answer, the last reading is given with its age: a page must stay live just then.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from application.ports.cache_stats import CacheStats
from application.ports.clock import Clock
from application.ports.document_store import DocumentUsage
from application.ports.engine import Engine
from domain.errors import DomainError, StoreUnresponsive

FRESH_S = 1.0
"""What was read less than so long ago is not read again."""

PATIENCE_S = 0.5
"""How long who asks waits for a reading."""


@dataclass(frozen=True, slots=True)
class CacheReading:
    """`documents`: None while their store does not answer."""

    stats: CacheStats
    documents: DocumentUsage | None
    at_ns: int


class CacheReadings:
    """Event loop only."""

    def __init__(
        self,
        engine: Engine,
        documents: Callable[[], Awaitable[DocumentUsage]],
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._documents = documents
        self._clock = clock
        self._last: CacheReading | None = None
        self._reading: asyncio.Task[None] | None = None

    async def latest(self) -> CacheReading | None:
        """None while the first reading has not come."""
        if self._is_fresh():
            return self._last
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        await asyncio.wait([self._reading], timeout=PATIENCE_S)
        return self._last

    def _is_fresh(self) -> bool:
        return self._last is not None and self._clock.now_ns() - self._last.at_ns < FRESH_S * 1e9

    async def _read(self) -> None:
        try:
            stats = await self._engine.cache.stats()
            try:
                documents = await self._documents()
            except StoreUnresponsive:
                documents = None
            self._last = CacheReading(stats, documents, self._clock.now_ns())
        except DomainError:  # the engine is gone or stopping: what was read last is all there is
            pass
        finally:
            self._reading = None
