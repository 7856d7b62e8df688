"""How full the tiers are: read once for all who ask, and the last reading while nothing answers."""

import asyncio
from typing import cast

import pytest

from adapters.fake.environment import FakeClock
from application.ports.cache_stats import CacheStats, HotUsage
from application.ports.document_store import DocumentUsage
from application.ports.engine import Engine
from application.services import cache_readings
from application.services.cache_readings import CacheReading, CacheReadings
from domain.errors import ServerUnavailable, StoreUnresponsive
from tests.support.patience import PATIENCE_S

HOT = HotUsage(budget_bytes=9, used_bytes=1, num_blocks=1, num_snapshots=0, num_pinned=0, evicted=0)
DOCUMENTS = DocumentUsage(quota_bytes=9, stored_bytes=1, num_documents=1, evicted=0, faults={})


class Tiers:
    def __init__(self) -> None:
        self.num_read, self.cache = 0, self
        self.answers = asyncio.Event()
        self.answers.set()
        self.error: Exception | None = None
        self.documents_error: Exception | None = None

    async def stats(self) -> CacheStats:
        self.num_read += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return CacheStats(HOT, None, None)

    async def documents(self) -> DocumentUsage:
        if self.documents_error is not None:
            raise self.documents_error
        return DOCUMENTS


def test_many_who_ask_read_once_and_what_is_fresh_is_not_read_again() -> None:
    async def ask() -> None:
        tiers, clock = Tiers(), FakeClock()
        readings = CacheReadings(cast(Engine, tiers), tiers.documents, clock)
        found = await asyncio.gather(*[readings.latest() for _ in range(5)])
        assert found == [found[0]] * 5
        assert found[0] is not None
        assert (found[0].documents, tiers.num_read) == (DOCUMENTS, 1)
        await readings.latest()
        assert tiers.num_read == 1
        clock.advance(cache_readings.FRESH_S)
        await readings.latest()
        assert tiers.num_read == 2

    asyncio.run(ask())


def test_while_the_store_does_not_answer_the_last_reading_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_readings, "PATIENCE_S", 0.0)

    async def patiently(readings: CacheReadings) -> CacheReading | None:
        with monkeypatch.context() as patient:
            patient.setattr(cache_readings, "PATIENCE_S", PATIENCE_S)
            return await readings.latest()

    async def ask() -> None:
        tiers, clock = Tiers(), FakeClock()
        readings = CacheReadings(cast(Engine, tiers), tiers.documents, clock)
        tiers.answers.clear()
        assert await readings.latest() is None
        tiers.answers.set()
        first = await patiently(readings)
        tiers.answers.clear()
        clock.advance(60)
        assert await readings.latest() == first
        assert await readings.latest() == first
        assert tiers.num_read == 2  # nobody asks again while somebody waits
        tiers.answers.set()
        assert await patiently(readings) != first

    asyncio.run(ask())


def test_documents_that_do_not_answer_are_left_out() -> None:
    async def ask() -> None:
        tiers = Tiers()
        tiers.documents_error = StoreUnresponsive("hung")
        found = await CacheReadings(cast(Engine, tiers), tiers.documents, FakeClock()).latest()
        assert found is not None
        assert found.documents is None

    asyncio.run(ask())


def test_an_engine_that_ends_leaves_the_last_reading() -> None:
    async def ask() -> None:
        tiers, clock = Tiers(), FakeClock()
        readings = CacheReadings(cast(Engine, tiers), tiers.documents, clock)
        first = await readings.latest()
        tiers.error = ServerUnavailable("stopping")
        clock.advance(60)
        assert await readings.latest() == first

    asyncio.run(ask())
