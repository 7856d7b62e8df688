"""Upkeep of the store that somebody waits for: one thread for all, and a bound on waiting."""

import asyncio
from threading import Event

import pytest

from adapters.fake.environment import FakeClock
from application.services.lane import Lane
from application.services.prefix.store_tier import StoreTier
from domain.errors import StoreUnresponsive
from tests.support.telemetry.recording import RecordingEvents

SOON_S = 0.05


def test_nobody_waits_for_upkeep_that_hangs_and_what_has_not_begun_never_does() -> None:
    upkeep, gate, done = Lane("upkeep", 1), Event(), list[str]()
    workers = StoreTier(FakeClock(), RecordingEvents(), upkeep=upkeep, timeout_s=SOON_S)

    def hang() -> None:
        gate.wait()
        done.append("hung")

    with pytest.raises(StoreUnresponsive, match=r"within 0\.05 s"):
        asyncio.run(workers.await_upkeep(hang))
    with pytest.raises(StoreUnresponsive, match=r"within 0\.01 s"):
        asyncio.run(workers.await_upkeep(lambda: done.append("late"), timeout_s=0.01))
    gate.set()
    assert asyncio.run(workers.await_upkeep(lambda: "next", timeout_s=60)) == "next"
    upkeep.close()
    assert upkeep.join(60)
    assert done == ["hung"]
