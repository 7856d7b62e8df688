"""A child process that sends nothing any more: the status of its engine, and its end."""

import asyncio
import socket
import threading
from collections.abc import Callable

import pytest

from adapters.engine_process.engine import SILENCE, SILENT_AFTER_S, EngineProcess, Timeouts
from adapters.fake.environment import FakeClock
from application.ports.tokenizer import EncodedPrompt
from application.services.text_side.supervision.engine_supervisor import EngineSupervisor
from domain.health.engine_health import engine_health
from domain.ids import ModelId, RequestId
from tests.simulation.virtual_time import run_in_virtual_time
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
        child.kill()
        await engine.stop(PATIENCE_S)

    asyncio.run(run())


class TimedChild:
    """A Child that ends at the given step. `told`: what was done to it, and when, from the end of its socket on."""

    pid = None

    def __init__(self, ends_at: str) -> None:
        self.told: list[tuple[str, float]] = []
        self._ends_at = ends_at
        self._ended: Callable[[str], None] = lambda _how: None

    def start(self) -> socket.socket:
        ours, self._theirs = socket.socketpair()
        asyncio.get_running_loop().add_reader(self._theirs, self._read)
        return ours

    def _read(self) -> None:
        if not self._theirs.recv(1 << 16):
            asyncio.get_running_loop().remove_reader(self._theirs)
            self._theirs.close()
            self._note("socket")

    def _note(self, what: str) -> None:
        self.told.append((what, asyncio.get_running_loop().time()))
        if what == self._ends_at:
            self._ended(f"ended by {what}")

    def abort(self) -> None:
        self._note("abort")

    def kill(self) -> None:
        self._note("kill")

    def reap(self, ended: Callable[[str], None]) -> None:
        self._ended = ended


SIGNALS = [("socket", 0.0), ("abort", 8.0), ("kill", 13.0)]


@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("ends_at", ["socket", "abort", "kill", "never"])
def test_its_socket_ends_first_then_it_is_aborted_then_killed(ends_at: str, *, is_stopped: bool) -> None:
    async def run() -> None:
        child, whys, over = TimedChild(ends_at), list[str](), asyncio.Event()

        def note(why: str) -> None:
            whys.append(why)
            over.set()

        engine = EngineProcess(child, b"", FakeClock(), lost=note, timeouts=Timeouts(close_s=0))
        engine.start(lambda _batch: None)
        if is_stopped:
            assert not await engine.stop(0)
        else:
            engine.abandon()
            await over.wait()
        steps = [name for name, _ in SIGNALS]
        last = steps.index(ends_at) if ends_at in steps else len(steps)
        assert child.told == SIGNALS[: last + 1]
        assert asyncio.get_running_loop().time() == (18.0 if ends_at == "never" else SIGNALS[last][1])
        how = f"ended by {ends_at}" if ends_at in steps else "does not end after it was killed"
        assert whys == ([] if is_stopped else [f"the engine's process {how}"])

    run_in_virtual_time(run())


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
