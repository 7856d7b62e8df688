"""The regular reports are sent every few seconds, also while a reading fails."""

import asyncio
from dataclasses import replace
from typing import cast

from adapters.fake.environment import FakeClock
from application.events import CacheMeasured, FaultObserved, ReadinessMeasured, TierReading
from application.ports.cache_stats import CacheStats, HotUsage, QueueCounts, StoredModel, StoreStats
from application.ports.engine import Engine, EngineStatus
from application.services.cache_readings import IDLE_REPORT_EVERY_S, REPORT_EVERY_S, RegularReports
from tests.support.telemetry.recording import RecordingEvents

HOT = HotUsage(budget_bytes=1000, used_bytes=600, num_blocks=5, num_snapshots=2, num_pinned=1, evicted=3)
MODEL = StoredModel(model="m", num_namespaces=1, num_blocks=11, num_snapshots=4, raw_bytes=8000, stored_bytes=4000)
STORE = StoreStats(quota_bytes=9000, stored_bytes=8000, evicted=1, faults={}, models=(MODEL, MODEL))


class Cache:
    """The part of an Engine that is asked."""

    def __init__(self, *answers: CacheStats | Exception) -> None:
        self._answers, self.cache = list(answers), self
        self.state = EngineStatus(
            is_alive=True, is_busy=False, last_progress_ns=0, last_step_ns=0, num_waiting=0, num_running=0
        )

    def status(self) -> EngineStatus:
        return self.state

    async def stats(self) -> CacheStats:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Health:
    is_ready = True


def reported(*answers: CacheStats | Exception) -> RecordingEvents:
    events, clock = RecordingEvents(), FakeClock()
    reports = RegularReports(cast(Engine, Cache(*answers)), Health, events, clock)
    for _ in answers:
        asyncio.run(reports.report())
    return events


def test_tiers_and_readiness_are_reported() -> None:
    events, now = reported(CacheStats(HOT, STORE, QueueCounts(lag_s=0.5))), FakeClock().now_ns()
    tiers = TierReading("hot", 600, 1000, 3), TierReading("store", 8000, 9000, 1)
    assert events.events == [ReadinessMeasured(True, now), CacheMeasured(tiers, now, 0.5)]


def test_what_could_not_be_read_is_left_out() -> None:
    (found,) = reported(CacheStats(HOT, None, None, "the store does not answer")).of(CacheMeasured)
    assert [tier.name for tier in found.tiers] == ["hot"]


def test_a_failure_is_a_fault_and_asked_again() -> None:
    events = reported(OSError("no"), CacheStats(HOT, None, None))
    (fault,) = events.of("FaultObserved")
    assert isinstance(fault, FaultObserved)
    assert fault.where == "cache.stats"
    assert len(events.of("CacheMeasured")) == 1


def test_a_server_that_had_nothing_to_do_reports_rarely() -> None:
    clock, engine, health = FakeClock(start_ns=1), Cache(*[CacheStats(HOT, None, None)] * 6), Health()
    reports = RegularReports(cast(Engine, engine), lambda: health, RecordingEvents(), clock)

    def pause_s(**changes: int) -> float:
        clock.advance(1)
        engine.state = replace(engine.state, **changes)
        return asyncio.run(reports.report())

    assert pause_s() == REPORT_EVERY_S, "the first one knows of nothing before it"
    assert pause_s() == IDLE_REPORT_EVERY_S
    assert pause_s(last_step_ns=clock.now_ns()) == REPORT_EVERY_S
    assert pause_s() == IDLE_REPORT_EVERY_S
    assert pause_s(num_calls=1) == REPORT_EVERY_S
    health.is_ready = False
    assert pause_s(num_calls=0) == REPORT_EVERY_S
