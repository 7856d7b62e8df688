"""The child's end: an Engine that is driven by messages, from Begin, which carries its settings, to Stop.

    waiting for Begin ──► serving ──Stop──► stopping ──► Stopped is sent, behind all reports
                             └──end of file: only the store is closed──┘

Any failure here ends the process: the parent starts a new one. Event loop only; the engine's output does not pass
through the loop but through `reports`.

The process ignores SIGINT, SIGTERM and SIGHUP, which are meant for the server, and does not outlive it: Linux kills
this process with its parent, and on every system end of file on the socket ends it. A crash writes every thread's stack
to standard error.
"""

import asyncio
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from adapters.engine_process.channel import Channel
from adapters.engine_process.messages import (
    CHECK,
    LOAD,
    NO_VALUE,
    QUESTIONS,
    UNLOAD,
    Adjust,
    Ask,
    Begin,
    Broken,
    Cancel,
    EngineReply,
    Provide,
    Stop,
    Stopped,
    Submit,
    ToChild,
    Withdraw,
    decoded,
    greeting,
    raw,
)
from adapters.engine_process.reports import Reports
from application.ports.engine import Engine, EngineError, EngineStatus
from application.ports.model_repository import ModelCheck
from application.services.faults import described
from domain.errors import ComputeFailed, DomainError
from domain.printable import writable

HEARTBEAT_S = 0.5
IDLE_HEARTBEAT_S = 5.0
"""The interval of an engine without work; the first message that brings work ends it."""

ORPHAN_TIMEOUT_S = 5.0
"""The time in which an engine without a parent must end its step."""

_logger = logging.getLogger("cairn.engine")


@dataclass(frozen=True, slots=True)
class Hosted:
    """The engine of a child and the checks of its models. `engine` may deliver its batches on any thread, one after
    the other. `check`: a ModelCheck for its backend. `adjust`: takes those of changed settings that it can, encoded as
    the first ones were."""

    engine: Engine
    check: ModelCheck
    adjust: Callable[[bytes], None] = lambda _settings: None


MakeEngine: TypeAlias = Callable[[bytes, Callable[[], None]], Hosted]
"""Makes the engine of a child from its settings, which may take long and raise. The engine calls the second argument
before each step; it waits for a parent that reads slowly."""


def serve_parent(
    descriptor: int,
    make: MakeEngine,
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    warm_up: Callable[[], object] = lambda: None,
) -> int:
    """Runs a child from its start to its end. Returns its exit status; leave with `os._exit`. `warm_up`: work that
    needs no settings, such as imports."""
    sock = take_up(descriptor)
    warm_up()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        host = EngineHost(make)
        return runner.run(host.run(sock))


class EngineHost:
    def __init__(self, make: MakeEngine, open_channel: Callable[..., Channel] = Channel) -> None:
        self._make = make
        self._open_channel = open_channel
        self._hosted: Hosted | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stopping: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._is_resting = False  # the next heartbeat is that of an engine without work

    async def run(self, sock: Any) -> int:
        """Runs until the engine has stopped and all is sent, or the parent is gone."""
        self._loop = asyncio.get_running_loop()
        self._status: asyncio.Future[int] = self._loop.create_future()
        self._last_status = 0
        self._is_last_sent = False
        self._channel = self._open_channel(sock, self._received, self._orphaned, self._moved)
        self._channel.send(greeting())
        self._reports = Reports(self._channel, self._status_now, self._hole)
        try:
            return await self._status
        finally:
            self._channel.close()

    # ---- messages of the parent --------------------------------------------------------------------------------

    def _received(self, payload: bytes) -> None:
        try:
            self._take(decoded(payload, ToChild))
        except Exception:
            _logger.exception("a message to the engine's process cannot be handled")
            self._finish(1)

    def _take(self, message: ToChild) -> None:
        if isinstance(message, Begin):
            self._begin(message)
            return
        hosted = self._hosted
        if hosted is None:
            return  # the engine could not be made, and the process is about to end
        if self._is_resting and _is_work(message):
            self._beat_after(HEARTBEAT_S)
        match message:
            case Submit():
                with suppress(DomainError):  # the engine's thread has ended, and this process is about to
                    hosted.engine.submit(message.submission)
            case Cancel() | Provide():
                message.pass_to(hosted.engine)
            case Adjust():
                hosted.adjust(message.settings)
            case Ask():
                self._tasks[message.call] = asyncio.create_task(self._answer(hosted, message))
            case Withdraw():
                with suppress(KeyError):  # it has just been answered
                    self._tasks[message.call].cancel()
            case Stop():
                self._stop(message.timeout_s)

    def _begin(self, message: Begin) -> None:
        try:
            hosted = self._hosted = self._make(message.settings, self._reports.hold)
            self._reports.begin(lambda: hosted.engine.start(self._reports.batch))
        except Exception as error:
            self._hosted = None
            if isinstance(error, DomainError):  # its message suffices
                why = error.message
            else:
                _logger.exception("the engine could not be made")
                why = f"the engine cannot be made: {writable(described(error))}"
            self._reports.say(Broken(why))
            self._finish(1)
            return
        self._beat()

    async def _answer(self, hosted: Hosted, asked: Ask) -> None:
        """Answer a question, also if its value cannot be encoded."""
        try:
            answer = EngineReply(asked.call, raw(await self._find(hosted, asked)))
            self._reports.status()  # the call may have changed it
        except DomainError as error:
            answer = EngineReply(asked.call, NO_VALUE, EngineError.of(error))
        except Exception as error:
            _logger.exception("the engine's process failed at %s", asked.what)
            answer = EngineReply(asked.call, NO_VALUE, EngineError.of(ComputeFailed(described(error))))
        finally:
            del self._tasks[asked.call]
        if not hosted.engine.status().fault:  # otherwise the parent asks the next engine, or blames a load
            self._reports.say(answer)

    async def _find(self, hosted: Hosted, asked: Ask) -> object:
        arguments = decoded(asked.arguments, QUESTIONS[asked.what].arguments)
        if asked.what == CHECK.name:
            return await asyncio.to_thread(hosted.check, *arguments)
        owner = hosted.engine if asked.what in (LOAD.name, UNLOAD.name) else hosted.engine.cache
        return await getattr(owner, asked.what)(*arguments)

    # ---- reports -----------------------------------------------------------------------------------------------

    def _status_now(self) -> EngineStatus:
        assert self._hosted is not None, "it has begun"
        return self._hosted.engine.status()

    def _beat(self) -> None:
        status = self._reports.beat()
        if status.fault and self._stopping is None:  # its thread has ended and cannot be restarted
            self._break(status.fault)
            return
        is_working = status.is_busy or status.num_calls or self._tasks
        self._beat_after(HEARTBEAT_S if is_working else IDLE_HEARTBEAT_S)

    def _beat_after(self, seconds: float) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._is_resting = seconds > HEARTBEAT_S
        self._heartbeat = None if self._stopping else self._loop.call_later(seconds, self._beat)

    def _hole(self, why: str) -> None:
        """A batch cannot be encoded. Any thread."""
        with suppress(RuntimeError):  # the loop was closed, and this process ends anyway
            self._loop.call_soon_threadsafe(self._break, f"the engine stopped: its output cannot be encoded: {why}")

    # ---- the end -----------------------------------------------------------------------------------------------

    def _break(self, why: str) -> None:
        if self._stopping is None:
            self._reports.say(Broken(writable(why)))
            self._stop(ORPHAN_TIMEOUT_S)

    def _stop(self, timeout_s: float) -> None:
        if self._stopping is None:
            self._reports.release()
            self._stopping = asyncio.create_task(self._end(timeout_s))

    async def _end(self, timeout_s: float) -> None:
        in_time = False
        try:
            if self._heartbeat is not None:
                self._heartbeat.cancel()
            if self._hosted is not None:
                in_time = await self._hosted.engine.stop(timeout_s)
                if not in_time:
                    faulthandler.dump_traceback(all_threads=True)
            for task in tuple(self._tasks.values()):
                task.cancel()
            self._reports.say(Stopped(in_time))
        except Exception:
            _logger.exception("the engine's process could not stop its engine")
        self._finish(0 if in_time else 1)

    def _orphaned(self, _why: str) -> None:
        """The parent is gone. An end that waits for unsent bytes continues."""
        if self._hosted is None:
            self._finish(1)
        else:
            self._stop(ORPHAN_TIMEOUT_S)
            self._moved()

    def _finish(self, status: int) -> None:
        """End the process once everything is sent."""
        self._last_status, self._is_last_sent = status, True
        self._moved()

    def _moved(self) -> None:
        self._reports.moved()
        if self._is_last_sent and not self._channel.num_unsent_bytes and not self._status.done():
            self._status.set_result(self._last_status)


def _is_work(message: ToChild) -> bool:
    return isinstance(message, Submit) or (isinstance(message, Ask) and message.what == LOAD.name)


PR_SET_PDEATHSIG = 1


def take_up(descriptor: int) -> socket.socket:
    """Returns the child's end of the socket and sets up the signals. Call it first in the child, on its main thread."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    _die_with_parent()
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    return sock


def _die_with_parent() -> None:
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended in between
        os._exit(1)
