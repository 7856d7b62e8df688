"""The child's end: an Engine driven by messages, from the first one, which says how it is to be made, to its stop.

    waiting for Begin ──► serving ──Stop──► stopping ──► Stopped is sent, and all that was told before it
                             └──end of file: nobody is left, so only the store is seen to──┘

Whatever goes wrong here ends the process: the other end makes a new one. Event loop only.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from adapters.engine_process.asking import NO_VALUE
from adapters.engine_process.channel import Channel
from adapters.engine_process.lifeline import take_up
from adapters.engine_process.messages import (
    QUESTIONS,
    Answer,
    Ask,
    Begin,
    Begun,
    Broken,
    Cancel,
    Status,
    Stop,
    Stopped,
    Submit,
    ToChild,
    ToParent,
    Withdraw,
    batch_bytes,
    raw,
)
from adapters.engine_process.open_choices import OpenChoices
from adapters.engine_process.reader_gate import ReaderGate
from adapters.engine_process.values import SentError, decoded, encoded
from application.ports.engine import Ended, Engine, EngineStatus, StepBatch, Submission
from application.ports.model_repository import ModelCheck
from application.services.faults import described
from domain.errors import ComputeFailed, DomainError

HEARTBEAT_S = 0.5
STATUS_AGE_S = 0.1
"""A status may be so old while batches come that end nothing."""

ORPHAN_TIMEOUT_S = 5.0
"""How long an engine without a reader has to end its step."""

_logger = logging.getLogger("cairn.engine")


@dataclass(frozen=True, slots=True)
class Hosted:
    """What a child hosts. `check`: a ModelCheck for models of its backend."""

    engine: Engine
    check: ModelCheck


class MakeEngine(Protocol):
    """What is special about a child: how its engine is made."""

    def __call__(self, settings: bytes, hold: Callable[[], None]) -> Hosted:
        """`hold`: to be called by the engine before each step; it waits for a reader that lags behind. May take long,
        and raise."""
        ...


def serve_parent(
    descriptor: int,
    make: MakeEngine,
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    warm_up: Callable[[], object] = lambda: None,
) -> int:
    """A child's whole life. Returns its exit status; leave with `os._exit`. `warm_up`: what can be done before it is
    known which engine is wanted."""
    sock = take_up(descriptor)
    warm_up()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        host = EngineHost(make)
        return runner.run(host.run(sock))


class EngineHost:
    def __init__(
        self, make: MakeEngine, gate: ReaderGate | None = None, open_channel: Callable[..., Channel] = Channel
    ) -> None:
        self._make = make
        self._gate = gate or ReaderGate()
        self._open_channel = open_channel
        self._hosted: Hosted | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stopping: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._status_told_s = 0.0

    async def run(self, sock: Any) -> int:
        """Until the engine has stopped and all is sent, or nobody is left to send it to."""
        loop = asyncio.get_running_loop()
        self._gate.connect(loop.call_soon_threadsafe)
        self._status: asyncio.Future[int] = loop.create_future()
        self._last_status = 0
        self._is_last_sent = False
        self._channel = self._open_channel(sock, self._received, self._orphaned, self._moved)
        try:
            return await self._status
        finally:
            self._channel.close()

    # ---- what the parent says ----------------------------------------------------------------------------------

    def _received(self, payload: bytes) -> None:
        try:
            self._take(decoded(payload, ToChild))
        except Exception:
            _logger.exception("the engine's process was told what it cannot do")
            self._finish(1)

    def _take(self, message: ToChild) -> None:
        if isinstance(message, Begin):
            self._begin(message)
            return
        hosted = self._hosted
        if hosted is None:
            return  # it could not be made: what was said meanwhile ends with the process
        match message:
            case Submit():
                self._submit(hosted.engine, message.submission)
            case Cancel():
                hosted.engine.cancel(message.id, message.choice, reason=message.reason, num_tokens=message.num_tokens)
            case Ask():
                self._tasks[message.call] = asyncio.create_task(self._answer(hosted, message))
            case Withdraw():
                if (task := self._tasks.get(message.call)) is not None:
                    task.cancel()
            case Stop():
                self._stop(message.timeout_s)

    def _begin(self, message: Begin) -> None:
        try:
            self._hosted = self._make(message.settings, self._gate.wait)
            self._hosted.engine.start(self._tell)
        except Exception as error:
            _logger.exception("the engine could not be made")
            self._hosted = None
            self._send(Broken(error.message if isinstance(error, DomainError) else described(error)))
            self._finish(1)
            return
        self._send(Begun(self._status_now()))
        self._beat()

    def _submit(self, engine: Engine, submission: Submission) -> None:
        try:
            engine.submit(submission)
        except DomainError as error:
            lost = OpenChoices()
            lost.add(submission)
            if (batch := lost.ended(error, engine.status().last_progress_ns)) is not None:
                self._tell(batch)

    async def _answer(self, hosted: Hosted, asked: Ask) -> None:
        try:
            value = await self._find(hosted, asked)
        except DomainError as error:
            self._send(Answer(asked.call, NO_VALUE, SentError.of(error)))
        except Exception as error:
            _logger.exception("asked to %s, the engine's process failed", asked.what)
            self._send(Answer(asked.call, NO_VALUE, SentError.of(ComputeFailed(described(error)))))
        else:
            self._send(Status(self._status_now()))  # what was asked for may have changed it
            self._send(Answer(asked.call, raw(value)))
        finally:
            del self._tasks[asked.call]

    async def _find(self, hosted: Hosted, asked: Ask) -> object:
        arguments = decoded(asked.arguments, QUESTIONS[asked.what].arguments)
        if asked.what == "check":
            return await asyncio.to_thread(hosted.check, *arguments)
        engine, cache = hosted.engine, hosted.engine.cache
        ways: dict[str, Callable[..., Coroutine[Any, Any, object]]] = {
            "load": engine.load,
            "unload": engine.unload,
            "explain": cache.explain,
            "num_stored": cache.num_stored,
            "settle": cache.settle,
            "stats": cache.stats,
            "clear": cache.clear,
        }
        return await ways[asked.what](*arguments)

    # ---- what it is told ---------------------------------------------------------------------------------------

    def _tell(self, batch: StepBatch) -> None:
        now_s = asyncio.get_running_loop().time()
        is_news = batch.num_left_queue or any(type(item) is Ended for _, _, item in batch.items)
        is_news = is_news or now_s - self._status_told_s > STATUS_AGE_S
        status = self._status_now() if is_news else None
        self._channel.send(batch_bytes(batch, status))
        self._gate.unsent(self._channel.num_unsent_bytes)

    def _send(self, message: ToParent) -> None:
        self._channel.send(encoded(message))

    def _status_now(self) -> EngineStatus:
        assert self._hosted is not None, "it has begun"
        self._status_told_s = asyncio.get_running_loop().time()
        return self._hosted.engine.status()

    def _beat(self) -> None:
        """Nobody who reads slowly is sent what is only news for a moment."""
        status = self._status_now()
        if not self._channel.num_unsent_bytes:
            self._send(Status(status))
        if status.fault and self._stopping is None:  # its thread is lost, and nothing here brings it back
            self._send(Broken(status.fault))
            self._stop(ORPHAN_TIMEOUT_S)
            return
        self._heartbeat = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)

    # ---- the end -----------------------------------------------------------------------------------------------

    def _stop(self, timeout_s: float) -> None:
        if self._stopping is None:
            self._gate.open_for_good()
            self._stopping = asyncio.create_task(self._end(timeout_s))

    async def _end(self, timeout_s: float) -> None:
        in_time = False
        try:
            if self._heartbeat is not None:
                self._heartbeat.cancel()
            if self._hosted is not None:
                in_time = await self._hosted.engine.stop(timeout_s)
            for task in tuple(self._tasks.values()):
                task.cancel()
            self._send(Stopped(in_time))
        except Exception:
            _logger.exception("the engine's process could not stop its engine")
        self._finish(0 if in_time else 1)

    def _orphaned(self, _why: str) -> None:
        if self._hosted is None:
            self._finish(1)
        else:
            self._stop(ORPHAN_TIMEOUT_S)

    def _finish(self, status: int) -> None:
        """Leave once everything is sent."""
        self._last_status, self._is_last_sent = status, True
        self._moved()

    def _moved(self) -> None:
        num_bytes = self._channel.num_unsent_bytes
        self._gate.unsent(num_bytes)
        if self._is_last_sent and not num_bytes and not self._status.done():
            self._status.set_result(self._last_status)


__all__ = ("EngineHost", "Hosted", "MakeEngine", "serve_parent")
