"""Whether an engine moves, decided from its heartbeat alone."""

import dataclasses

import pytest

from domain.health.engine_health import ENDED, WAITING, Activity, EngineHealth, Heartbeat, engine_health
from domain.ids import RequestId

S = 1_000_000_000
AFTER_S = 10.0
IDS = (RequestId("a"), RequestId("b"))


def at(now_s: float, **beat: object) -> EngineHealth:
    beats = Heartbeat(last_step_ns=0, last_progress_ns=0)
    return engine_health(dataclasses.replace(beats, **beat), int(now_s * S), AFTER_S)  # type: ignore[arg-type]


@pytest.mark.parametrize("outstanding", [{"num_waiting": 1}, {"num_running": 1}, {"num_calls": 1}])
def test_a_thread_that_does_not_come_round_is_stuck_in_what_it_does(outstanding: dict[str, int]) -> None:
    doing = Activity("prefill", S // 2, IDS)
    before = at(9.9, activity=doing, **outstanding)
    assert (before.is_stuck, before.stuck_in, before.stuck_since_ns, before.request_ids) == (False, "", None, ())
    stuck = at(10, activity=doing, **outstanding)
    assert (stuck.is_stuck, stuck.stuck_in, stuck.stuck_since_ns, stuck.request_ids) == (True, "prefill", S // 2, IDS)
    assert (stuck.step_age_s, stuck.stuck_s(10 * S)) == (10.0, 9.5)


def test_an_idle_engine_is_well_however_old_its_last_step_is() -> None:
    idle = at(1e6)
    assert (idle.is_stuck, idle.step_age_s, idle.stuck_s(5)) == (False, 1e6, 0)


def test_an_engine_that_comes_round_without_a_step_is_stuck_once_somebody_is_open() -> None:
    moving = {"last_progress_ns": 99 * S, "last_step_ns": 90 * S, "num_running": 1}
    assert not at(99.9, **moving).is_stuck
    stuck = at(100, **moving)
    assert (stuck.stuck_in, stuck.stuck_since_ns) == (WAITING, 90 * S)


def test_waiting_for_memory_and_for_the_files_of_a_model_have_ends_of_their_own() -> None:
    assert not at(1e4, last_progress_ns=int(1e4) * S, num_waiting=2, num_blocked=2).is_stuck
    assert not at(1e4, last_progress_ns=int(1e4) * S, num_calls=1).is_stuck
    assert at(1e4, last_progress_ns=int(1e4) * S, num_waiting=3, num_blocked=2).stuck_in == WAITING


def test_an_engine_that_ended_by_itself_is_stuck_at_once() -> None:
    gone = at(1, fault="the engine stopped: MemoryError", is_alive=False, last_progress_ns=S)
    being_made = at(1, fault="the engine is being restarted", num_waiting=1)
    assert not being_made.is_stuck
    assert (gone.is_stuck, gone.stuck_in, gone.stuck_since_ns) == (True, ENDED, S)
