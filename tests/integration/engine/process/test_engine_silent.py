"""A child process that sends nothing any more: the status of its engine, and its end."""

import asyncio
import socket
import threading
from collections.abc import Callable

from adapters.engine_process.engine import SILENCE, SILENT_AFTER_S, EngineProcess, Timeouts
from adapters.fake.environment import FakeClock
from application.ports.tokenizer import EncodedPrompt
from application.services.text_side.supervision.engine_supervisor import EngineSupervisor
from domain.health.engine_health import engine_health
from domain.ids import ModelId, RequestId
from tests.support.engines.sync_engine import submission
from tests.support.patience import PATIENCE_S

STUCK_AFTER_S = 300.0


class SilentChild:
    """A Child that was stopped before its first word, by a signal say. `told`: what was done to it."""

    pid = None

    def __init__(self) -> None:
        self.told: list[str] = []
        self._theirs: socket.socket | None = None
        self._killed = threading.Event()

    def start(self) -> socket.socket:
        ours, self._theirs = socket.socketpair()
        return ours

    def abort(self) -> None:
        self.told.append("abort")

    def kill(self) -> None:
        self.told.append("kill")
        self.end()

    def end(self) -> None:
        assert self._theirs is not None
        self._theirs.close()
        self._killed.set()

    def reap(self, ended: Callable[[str], None]) -> None:
        def wait() -> None:
            assert self._killed.wait(PATIENCE_S)
            ended("was killed")

        threading.Thread(target=wait).start()


def test_what_it_has_not_taken_up_is_outstanding_and_it_is_stuck_in_silence() -> None:
    async def run() -> None:
        clock, child = FakeClock(start_ns=0), SilentChild()
        engine = EngineSupervisor(lambda lost: EngineProcess(child, b"", clock, lost=lost), clock)
        engine.start(lambda _batch: None)
        engine.submit(submission("a", ModelId("m"), EncodedPrompt.of_text((1, 2)), 4, num_choices=2))
        early = engine.status()
        assert (early.num_waiting, early.activity) == (2, None), "it may just be taking them up"
        clock.advance(SILENT_AFTER_S + 1)
        late = engine.status()
        assert late.activity is not None
        assert (late.num_waiting, late.activity.kind, late.is_alive) == (2, SILENCE, True)
        assert not engine_health(late.heartbeat, clock.now_ns(), STUCK_AFTER_S).is_stuck
        clock.advance(STUCK_AFTER_S)
        found = engine_health(engine.status().heartbeat, clock.now_ns(), STUCK_AFTER_S)
        assert (found.stuck_in, found.stuck_since_ns) == (SILENCE, 0)
        engine.abandon()
        assert child.told == ["abort"]
        child.kill()
        await engine.stop(PATIENCE_S)

    asyncio.run(run())


class EternalChild(SilentChild):
    """It hangs in a driver: no signal ends it, and its socket stays open."""

    def kill(self) -> None:
        self.told.append("kill")


def test_one_that_cannot_be_killed_is_given_up_when_it_is_abandoned() -> None:
    async def run() -> None:
        child, lost = EternalChild(), asyncio.Event()
        whys = list[str]()

        def note(why: str) -> None:
            whys.append(why)
            lost.set()

        engine = EngineProcess(child, b"", FakeClock(), lost=note, timeouts=Timeouts(abort_s=0, gone_s=0))
        engine.start(lambda _batch: None)
        engine.abandon()
        async with asyncio.timeout(PATIENCE_S):
            await lost.wait()
        assert whys == ["the engine's process does not end after it was killed"]
        assert child.told == ["abort", "kill"]
        child.end()

    asyncio.run(run())


def test_one_that_cannot_be_killed_does_not_hold_up_a_stop() -> None:
    async def run() -> None:
        child = EternalChild()
        engine = EngineProcess(child, b"", FakeClock(), timeouts=Timeouts(close_s=0, gone_s=0))
        engine.start(lambda _batch: None)
        async with asyncio.timeout(PATIENCE_S):
            assert not await engine.stop(0)
        assert child.told == ["kill"]
        child.end()

    asyncio.run(run())


def test_nothing_is_outstanding_in_one_that_nobody_asks() -> None:
    async def run() -> None:
        clock, child = FakeClock(start_ns=0), SilentChild()
        engine = EngineProcess(child, b"", clock)
        engine.start(lambda _batch: None)
        clock.advance(1e6)
        assert not engine_health(engine.status().heartbeat, clock.now_ns(), STUCK_AFTER_S).is_stuck
        engine.cancel(RequestId("nobody"))
        child.kill()
        await engine.stop(PATIENCE_S)

    asyncio.run(run())
