"""The engine in a child process: what it is given, what it survives, and what is left of it.

A few real processes, for each takes a second to come; the port's contract runs on the same ends without one.
"""

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from adapters.engine_process import engine as engine_module
from adapters.engine_process.child import FOREIGN_KILL, ChildProcess
from adapters.engine_process.engine import EngineProcess
from adapters.engine_process.messages import greeting
from adapters.system.clock import SystemClock
from application.events import FaultObserved
from application.ports.engine import Tokens
from domain.errors import ModelLoadFailed, ServerUnavailable
from domain.models.model_card import LoadOptions
from tests.support.engines.engine_client import BROKEN, MODEL, EngineClient, source
from tests.support.patience import PATIENCE_S
from tests.support.processes.processes import ENVIRONMENT, ROOT

CHILD, ENDLESS = "tests.support.engines.process.engine_child", 100_000
PROC = Path("/proc")

needs_proc = pytest.mark.skipif(not PROC.is_dir(), reason="descriptors and signals are read from /proc")


def with_process(work: Callable[[EngineClient, EngineProcess], Awaitable[None]]) -> None:
    async def run() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        os.set_inheritable(listening.fileno(), True)  # as careless as can be
        engine = EngineProcess(ChildProcess(CHILD), b"", SystemClock())
        client = EngineClient(engine)
        engine.start(client.receive)
        try:
            await work(client, engine)
        finally:
            listening.close()
            assert await engine.stop(PATIENCE_S)
        assert engine.pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(engine.pid, 0)

    asyncio.run(run())


def sockets(process: object) -> set[str]:
    """By the names that the kernel has for them."""
    names = set[str]()
    for link in (PROC / str(process) / "fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            names.add(os.readlink(link))
    return {name for name in names if name.startswith("socket:")}


async def streaming(client: EngineClient) -> None:
    await client.engine.load(source(MODEL), LoadOptions())
    for id in "ab":
        client.submit(id, num_tokens=ENDLESS)
        await client.until_told(id, Tokens)


def test_killed_it_ends_every_question_at_once_and_says_how() -> None:
    async def work(client: EngineClient, engine: EngineProcess) -> None:
        await streaming(client)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)  # so that the question is not answered before it is killed
        settling = asyncio.ensure_future(engine.cache.settle(PATIENCE_S))
        await asyncio.sleep(0)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(ServerUnavailable, match="SIGKILL"):
            await settling
        status = engine.status()
        assert (status.is_alive, status.fault) == (False, f"the engine's process was killed by SIGKILL{FOREIGN_KILL}")
        assert [event.where for event in client.events if isinstance(event, FaultObserved)] == ["engine.process"]
        with pytest.raises(ServerUnavailable, match="SIGKILL"):
            client.submit("late")
        with pytest.raises(ServerUnavailable, match="SIGKILL"):
            await engine.load(source(MODEL), LoadOptions())

    with_process(work)


@needs_proc
def test_it_has_one_end_of_a_socket_and_minds_no_signal_of_the_terminal() -> None:
    async def work(client: EngineClient, engine: EngineProcess) -> None:
        await streaming(client)
        theirs, ours = sockets(engine.pid), sockets("self")
        assert theirs
        assert ours
        assert not theirs & ours
        assert os.getsid(engine.pid or 0) != os.getsid(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            os.kill(engine.pid or 0, number)
        preview = await engine.check(source(MODEL), LoadOptions())
        assert preview.weight_bytes == 7
        with pytest.raises(ModelLoadFailed, match="cut short"):
            await engine.check(source(BROKEN), LoadOptions())

    with_process(work)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the end of the socket tells it, in its own time")
def test_it_does_not_outlive_its_parent() -> None:
    script = """
import asyncio, sys
from adapters.engine_process.child import ChildProcess
from adapters.engine_process.engine import EngineProcess
from adapters.system.clock import SystemClock
from domain.models.model_card import LoadOptions
from tests.support.engines.engine_client import MODEL, source

async def main():
    engine = EngineProcess(ChildProcess("tests.support.engines.process.engine_child"), b"", SystemClock())
    engine.start(lambda batch: None)
    await engine.load(source(MODEL), LoadOptions())
    print(engine.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as parent:
        try:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            ending = os.pidfd_open(child)
        finally:
            parent.kill()
    try:
        assert select.select([ending], [], [], PATIENCE_S)[0], "it is still there"
    finally:
        os.close(ending)


@pytest.mark.parametrize(("is_own", "why"), [(True, ""), (False, FOREIGN_KILL)])
def test_only_a_kill_that_is_not_its_parents_is_laid_to_the_system(*, is_own: bool, why: str) -> None:
    child, how, ended = ChildProcess("tests.support.engines.process.engine_child"), list[str](), threading.Event()

    def note(said: str) -> None:
        how.append(said)
        ended.set()

    with child.start():
        if is_own:
            child.kill()
        else:
            os.kill(child.pid or 0, signal.SIGKILL)
        child.reap(note)
        assert ended.wait(PATIENCE_S)
    assert how == [f"was killed by SIGKILL{why}"]


def test_the_greeting_is_the_same_in_every_process_of_one_version() -> None:
    script = "from adapters.engine_process.messages import greeting; print(greeting().decode())"
    seeds = [ENVIRONMENT | {"PYTHONHASHSEED": seed} for seed in ("1", "2")]
    found = {subprocess.check_output([sys.executable, "-c", script], cwd=ROOT, env=env, text=True) for env in seeds}
    assert found == {greeting().decode() + "\n"}


class EndedAtOnce:
    """A Child that ends before it sends anything, as one whose module was moved by an upgrade."""

    pid = None

    def __init__(self, *, is_seen: bool = True) -> None:
        """`is_seen`: by the end of its socket, which a grandchild may hold, and an event loop may miss."""
        self._is_seen = is_seen

    def start(self) -> socket.socket:
        ours, self.theirs = socket.socketpair()
        if self._is_seen:
            self.theirs.close()
        return ours

    def kill(self) -> None:
        return

    def abort(self) -> None:
        return

    def reap(self, ended: Callable[[str], None]) -> None:
        ended("exited with status 1")


def test_the_end_of_a_process_ends_the_engine_also_where_its_socket_stays_open() -> None:
    async def run() -> str:
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        child = EndedAtOnce(is_seen=False)
        EngineProcess(child, b"", SystemClock(), lost=told.set_result).start(lambda _batch: None)
        with child.theirs:
            return await asyncio.wait_for(told, PATIENCE_S)

    assert asyncio.run(run()) == "the engine's process exited with status 1"


@pytest.mark.parametrize("is_upgraded", [True, False])
def test_a_child_that_cannot_start_is_outdated_after_an_upgrade(
    monkeypatch: pytest.MonkeyPatch, is_upgraded: bool
) -> None:
    if is_upgraded:
        monkeypatch.setattr(engine_module, "installed_version", lambda: "another")

    async def run() -> tuple[bool, str]:
        engine = EngineProcess(EndedAtOnce(), b"", SystemClock())
        engine.start(lambda _batch: None)
        await asyncio.wait_for(engine.begun(), PATIENCE_S)
        return engine.is_outdated, engine.status().fault

    fault = engine_module.OUTDATED if is_upgraded else "the engine's process exited with status 1"
    assert asyncio.run(run()) == (is_upgraded, fault)
