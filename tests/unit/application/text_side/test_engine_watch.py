"""The watch over the engine and the event loop: its events and their times, on a scripted clock, without a thread."""

import dataclasses
from collections.abc import Callable

import pytest

from adapters.fake.environment import FakeClock
from application.events import EngineRecovered, EngineStuck
from application.ports.engine import EngineStatus
from application.services.lane import Lane
from application.services.text_side.supervision.engine_watch import (
    EXIT_AFTER_S,
    EXIT_STUCK,
    IDLE_LOOK_S,
    LOOK_S,
    LOOP_AFTER_S,
    REPORT_AGAIN_S,
    EngineWatch,
)
from domain.health.engine_health import ENDED, EVENT_LOOP, Activity
from domain.ids import RequestId
from tests.support.http.servers.fake_service import wait_until
from tests.support.processes.lanes import HeldLane, InlineLane
from tests.support.telemetry.recording import RecordingEvents

S = 1_000_000_000
STUCK_AFTER_S = 30.0


class Stacks:
    num_reads = 0

    def read(self) -> str:
        self.num_reads += 1
        return "thread cairn-compute:\n  engine.py:1 in hang"


class World:
    """An engine that reports what the test wants, a loop that answers when the test says so, a supervisor that
    counts. `told`: in which order the supervisor and the log were called."""

    def __init__(self, teller: Lane | None = None, *, stuck_after_s: float = STUCK_AFTER_S) -> None:
        self.clock, self.events, self.stacks = FakeClock(start_ns=0), RecordingEvents(), Stacks()
        self.told: list[str] = []
        self.exits: list[int] = []
        self.abandoned: list[int] = []
        self.loop: list[Callable[[], None]] = []
        self.is_loop_blocked = False
        self.status = EngineStatus(
            is_alive=True, is_busy=False, last_progress_ns=0, last_step_ns=0, num_waiting=0, num_running=0
        )
        self.watch = EngineWatch(
            status=lambda: self.status,
            clock=self.clock,
            events=self.events,
            stacks=self.stacks,
            stuck_after_s=stuck_after_s,
            supervisor=self,
            give_up=self.exits.append,
            abandon=lambda: self.abandoned.append(self.clock.now_ns()),
            flush=lambda: self.told.append("flush"),
            reporter=teller or InlineLane(),
        )
        self.watch.connect(self.call_soon)

    def ready(self) -> None: ...

    def stopping(self) -> None: ...

    def moving(self) -> None:
        self.told.append("moving")

    def call_soon(self, call: Callable[[], None]) -> None:
        self.loop.append(call)
        if not self.is_loop_blocked:
            self.answer()

    def answer(self) -> None:
        while self.loop:
            self.loop.pop()()

    def does(self, kind: str, **status: int) -> None:
        """The engine begins something, now."""
        now_ns = self.clock.now_ns()
        doing = Activity(kind, now_ns, (RequestId("a"),))
        self.status = dataclasses.replace(
            self.status, **{"last_progress_ns": now_ns, "last_step_ns": now_ns, "activity": doing, **status}
        )

    def looks(self, seconds: float) -> None:
        """A look a second."""
        for _ in range(int(seconds)):
            self.clock.advance(1)
            self.watch.check()

    def stuck(self) -> list[EngineStuck]:
        return self.events.of(EngineStuck)

    def recovered(self) -> list[EngineRecovered]:
        return self.events.of(EngineRecovered)


def test_a_step_that_does_not_end_is_reported_with_its_stack_within_a_second_of_the_time_set() -> None:
    world = World()
    world.does("prefill", num_running=1, num_waiting=2)
    world.looks(STUCK_AFTER_S - 1)
    assert (world.stuck(), world.stacks.num_reads) == ([], 0)
    world.looks(1)
    (told,) = world.stuck()
    assert (told.stuck_in, told.request_ids, told.since_ns, told.is_first) == ("prefill", (RequestId("a"),), 0, True)
    assert (told.num_waiting, told.num_running, told.at_ns) == (2, 1, STUCK_AFTER_S * S)
    assert "engine.py:1 in hang" in told.stack


def test_it_is_reported_again_once_a_period_and_that_it_is_over() -> None:
    world = World()
    world.does("decode", num_running=1)
    world.looks(STUCK_AFTER_S + 2 * REPORT_AGAIN_S + 5)
    assert [told.is_first for told in world.stuck()] == [True, False, False]
    assert world.exits == [], "an engine is replaced, and the process stays"
    assert world.recovered() == []
    world.does("plan")
    world.looks(2)
    (over,) = world.recovered()
    assert (over.stuck_in, over.stuck_ns) == ("decode", (STUCK_AFTER_S + 2 * REPORT_AGAIN_S + 6) * S)
    assert len(world.stuck()) == 3


def test_the_supervisor_hears_nothing_while_it_is_stuck() -> None:
    world = World()
    world.does("decode", num_running=1)
    world.looks(STUCK_AFTER_S - 1)
    assert world.told == ["moving"] * int(STUCK_AFTER_S - 1)
    world.looks(20)
    assert len(world.told) == STUCK_AFTER_S - 1
    world.does("idle", num_running=0)
    world.looks(1)
    assert world.told[-1] == "moving"


def test_an_engine_that_can_be_replaced_is_ended_once_each_time_it_is_stuck() -> None:
    world = World()
    world.does("prefill", num_running=1)
    world.looks(STUCK_AFTER_S + REPORT_AGAIN_S + 1)
    assert (len(world.stuck()), world.abandoned) == (2, [STUCK_AFTER_S * S])
    ended = {"is_alive": False, "fault": "the engine's process was killed by SIGABRT", "activity": None}
    world.status = dataclasses.replace(world.status, **ended)
    world.looks(2)
    world.status = dataclasses.replace(world.status, is_alive=True, fault="")
    world.does("prefill", num_running=1)
    world.looks(STUCK_AFTER_S)
    assert [told.stuck_in for told in world.stuck()] == ["prefill", "prefill", "ended", "prefill"]
    assert [bool(told.stack) for told in world.stuck()] == [True, True, False, True]
    assert len(world.abandoned) == 2


def test_an_engine_that_has_ended_and_is_replaced_at_once_was_never_stuck() -> None:
    world = World()
    world.does("prefill", num_running=1)
    for _ in range(3):
        world.status = dataclasses.replace(world.status, is_alive=False, fault="the engine's process was killed")
        world.looks(1)
        world.status = dataclasses.replace(world.status, is_alive=True, fault="")
        world.looks(1)
    assert world.events.events == []


def test_a_sink_that_hangs_keeps_neither_the_looks_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of what is submitted is ever done; the wait for the last words is bounded, here to nothing."""
    monkeypatch.setattr("application.services.text_side.supervision.engine_watch.FLUSH_S", 0.0)
    world = World(HeldLane(max_pending=1))
    world.is_loop_blocked = True
    world.looks(EXIT_AFTER_S + 1)
    assert (world.events.events, world.exits) == ([], [EXIT_STUCK])


def test_a_blocked_event_loop_is_stuck_and_ends_the_process_too() -> None:
    world = World()
    world.is_loop_blocked = True
    world.looks(LOOP_AFTER_S)
    assert world.stuck() == []
    world.looks(1)
    (told,) = world.stuck()
    assert (told.stuck_in, told.since_ns, world.watch.loop_lag_s()) == (EVENT_LOOP, S, LOOP_AFTER_S)
    assert world.told == ["moving"] * int(LOOP_AFTER_S)
    world.looks(EXIT_AFTER_S - LOOP_AFTER_S - 1)
    assert world.exits == []
    world.looks(1)
    assert (world.exits, world.told[-1]) == ([EXIT_STUCK], "flush")
    world.answer()
    assert world.abandoned == [], "the engine is not at fault"


def test_the_lag_of_a_loop_that_answers_late_is_known() -> None:
    world = World()
    world.is_loop_blocked = True
    world.looks(4)
    world.answer()
    assert world.watch.loop_lag_s() == 3
    world.is_loop_blocked = False
    world.looks(2)
    assert (world.watch.loop_lag_s(), world.stuck(), world.recovered()) == (0, [], [])


def test_a_process_that_was_stopped_for_an_hour_is_not_stuck_when_it_goes_on() -> None:
    world = World()
    world.does("prefill", num_running=1)
    world.looks(5)
    world.clock.advance(3600)
    world.looks(STUCK_AFTER_S)
    assert (world.stuck(), world.exits) == ([], [])
    world.looks(1)
    (told,) = world.stuck()
    assert told.since_ns == 3606 * S, "what was not lived through is not counted"


def test_a_loop_that_was_stopped_before_it_could_answer_is_not_stuck_when_it_goes_on() -> None:
    world = World()
    world.is_loop_blocked = True
    world.looks(1)
    world.clock.advance(3600)
    world.looks(LOOP_AFTER_S)
    assert (world.stuck(), world.exits) == ([], [])
    world.looks(1)
    (told,) = world.stuck()
    assert told.since_ns == 3602 * S, "what was not lived through is not counted"


def test_stuck_in_something_else_is_two_wedges() -> None:
    world = World()
    world.does("decode", num_running=1)
    world.looks(STUCK_AFTER_S)
    world.status = dataclasses.replace(world.status, is_alive=False, fault="the engine stopped: MemoryError")
    world.looks(2)
    assert [type(event).__name__ for event in world.events.events] == ["EngineStuck", "EngineRecovered", "EngineStuck"]
    assert world.stuck()[-1].stuck_in == "ended"


@pytest.mark.parametrize(("set_s", "device_s", "is_stuck_after"), [(1.0, None, 1), (STUCK_AFTER_S, 5.0, 5)])
def test_the_time_of_the_device_counts_before_the_one_that_is_set(
    set_s: float, device_s: float | None, is_stuck_after: int
) -> None:
    """Also one as short as the time between two looks, which is no pause of the watch's own."""
    world = World(stuck_after_s=set_s)
    world.status = dataclasses.replace(world.status, stuck_after_s=device_s)
    world.does("decode", num_running=1)
    world.looks(is_stuck_after - 1)
    assert not world.stuck()
    world.looks(1)
    assert [event.stuck_in for event in world.stuck()] == ["decode"]


def test_its_thread_looks_at_once_and_ends_when_asked() -> None:
    world = World()
    world.watch.start()
    wait_until(lambda: "moving" in world.told, "the first look")
    world.watch.stop()
    world.watch.stop()


def test_a_defect_of_what_it_asks_is_reported_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("application.services.text_side.supervision.engine_watch.LOOK_S", 0.001)
    world = World()
    status = world.status
    del world.status
    world.watch.start()
    wait_until(lambda: len(world.events.of("FaultObserved")) > 1, "two looks that failed")
    assert "moving" not in world.told
    world.status = status
    wait_until(lambda: "moving" in world.told, "a look that went well")
    world.watch.stop()


def test_one_that_is_to_take_over_and_hangs_is_abandoned_each_time_and_reported_by_its_end_alone() -> None:
    world = World()
    for _ in range(2):
        doing = Activity("load", world.clock.now_ns())
        world.status = dataclasses.replace(world.status, is_alive=False, fault="lost", activity=doing)
        num_before = len(world.abandoned)
        world.looks(STUCK_AFTER_S - 1)
        assert len(world.abandoned) == num_before
        world.looks(10)
        assert len(world.abandoned) == num_before + 1
        world.status = dataclasses.replace(world.status, activity=None)
        world.looks(1)
    assert {event.stuck_in for event in world.stuck()} == {ENDED}
    assert not world.recovered()


def test_it_looks_rarely_while_no_work_is_open_and_nothing_is_stuck() -> None:
    world = World()
    assert world.watch.check() == IDLE_LOOK_S
    for work in ("num_waiting", "num_running", "num_calls"):
        world.does("prefill", **{work: 1})
        assert world.watch.check() == LOOK_S, work
        world.does("idle", **{work: 0})
    world.is_loop_blocked = True
    assert world.watch.check() == IDLE_LOOK_S
    world.clock.advance(LOOP_AFTER_S - 1)
    world.watch.check()
    world.clock.advance(1)
    assert world.watch.check() == LOOK_S
    assert world.stuck()[0].stuck_in == EVENT_LOOP
    world.answer()
    world.is_loop_blocked = False
    assert world.watch.check() == IDLE_LOOK_S
    world.status = dataclasses.replace(world.status, is_alive=False, fault="the engine's process was killed")
    assert world.watch.check() == LOOK_S
