"""The text side's end: an Engine whose token side runs in a child process, for the life of that process.

    NEW ──start──► RUNNING ──stop──► STOPPING ──┐
                      └── end of file ──────────┴──► ENDED, once the process has ended

The process is waited for from its start: its end counts also where the socket does not report it.

The end of the child is the end of the engine: every open question ends then with the reason, whether the child was
stopped, crashed or was killed. Nothing is reported of choices that were open at a loss: `EngineSupervisor` continues
them in another engine.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count
from typing import Any, TypeVar

from adapters.engine_process.channel import Channel
from adapters.engine_process.child import Child
from adapters.engine_process.messages import (
    CHECK,
    CLEAR,
    CLEAR_HOT,
    EXPLAIN,
    LOAD,
    NUM_STORED,
    SETTLE,
    STATS,
    UNLOAD,
    Adjust,
    Ask,
    Batch,
    Begin,
    Begun,
    Broken,
    Cancel,
    EngineReply,
    Provide,
    Question,
    Status,
    Stop,
    Stopped,
    Submit,
    ToChild,
    ToParent,
    Withdraw,
    decoded,
    encoded,
    greeting,
    raw,
)
from application.events import FaultObserved
from application.installation import installed_version
from application.ports.cache_stats import CacheStats, Cleared
from application.ports.clock import Clock
from application.ports.engine import EngineCache, EngineError, EngineModel, EngineStatus, StepBatch, Submission
from application.ports.model_repository import ModelPreview
from application.ports.vision import PreparedImage
from application.services.faults import described
from domain.errors import DomainError, ServerUnavailable
from domain.health.engine_health import Activity
from domain.ids import ModelId, RequestId
from domain.models.model_card import LoadOptions, ModelSource
from domain.prefix.explanation import Explanation
from domain.prefix.prompt_content import EncodedPrompt
from domain.request.request import FinishReason

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The deadlines of the child, in seconds. `close_s`: for closing its store, beyond the engine's own time to stop.
    `alone_s`: for ending by itself without its socket, more than the host's ORPHAN_TIMEOUT_S. `abort_s`: for writing
    its stacks. `gone_s`: for ending after it was killed; a process that hangs in a driver may never end."""

    close_s: float = 37.0
    alone_s: float = 8.0
    abort_s: float = 5.0
    gone_s: float = 5.0


SILENT_AFTER_S = 10.0
"""Seconds without a message after which the child counts as silent; it sends one every 5 s at least."""

OUTDATED = "cairn was upgraded while it was running; restart the server"
"""The loss of an engine whose code differs from this process's."""

SILENCE = "silence"
"""The kind of Activity of a child that sends nothing."""

_VERSION = installed_version()

_logger = logging.getLogger("cairn.engine")


class _State(Enum):
    NEW = "new"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class EngineProcess:
    """An EngineInstance in a child process, and its EngineCache. Event loop only, except for `status`."""

    def __init__(
        self,
        child: Child,
        settings: bytes,
        clock: Clock,
        *,
        lost: Callable[[str], None] = lambda _why: None,
        timeouts: Timeouts | None = None,
    ) -> None:
        """`child`: not started yet. `settings`: the content of Begin. `lost`: called with the reason when the engine
        has ended without being stopped."""
        self._child = child
        self._settings = settings
        self._clock = clock
        self._lost = lost
        self._timeouts = timeouts or Timeouts()
        self._state = _State.NEW
        self._fault = self._broken = ""  # `_broken`: the child's own reason of its end
        self._stopped_in_time = True
        now = clock.now_ns()
        self._status = EngineStatus(
            is_alive=False, is_busy=False, last_progress_ns=now, last_step_ns=now, num_waiting=0, num_running=0
        )
        self._heard_ns = now
        self._questions = Questions(self._send)
        self._channel: Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receive: Callable[[StepBatch], None] = lambda _batch: None
        self._is_cut = self._has_greeted = False
        self._steps: tuple[asyncio.TimerHandle, ...] = ()  # towards the end of a process without its socket
        self.is_outdated = False
        self._has_begun, self._over = asyncio.Event(), asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The child's process id; None before the start."""
        return self._child.pid

    def start(self, receive: Callable[[StepBatch], None]) -> None:
        """Spawns the child, which takes milliseconds. It is ready seconds later; calls are accepted at once."""
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._state = _State.RUNNING
        try:
            ours = self._child.start()
        except OSError as error:
            self._fault = f"the engine's process cannot be started: {error.strerror or error}"
            self._loop.call_soon(self._end, self._fault)
            return
        _logger.info("the engine runs in process %s", self._child.pid)
        self._channel = Channel(ours, self._received, self._cut)
        self._child.reap(self._reaped)
        self._send(Begin(self._settings))

    def adjust(self, settings: bytes) -> None:
        """Has the child take what it can of changed settings, all of which are encoded as the first ones were."""
        self._settings = settings
        self._send(Adjust(settings))

    async def stop(self, timeout_s: float) -> bool:
        if self._state is _State.NEW:
            self._state = _State.ENDED
            self._over.set()
        if self._state is _State.RUNNING:
            self._state = _State.STOPPING
            self._send(Stop(timeout_s))
        try:
            await asyncio.wait_for(self._over.wait(), timeout_s + self._timeouts.close_s)
        except TimeoutError:
            self._stopped_in_time = False
            self._give_up()
            await self._over.wait()
        return self._stopped_in_time

    def abandon(self) -> None:
        """Ends a child that hangs."""
        self._give_up()

    def status(self) -> EngineStatus:
        """The last status that the child reported."""
        status, heard_ns = self._status, self._heard_ns
        is_silent = self._clock.now_ns() - heard_ns > SILENT_AFTER_S * 1e9
        return replace(
            status,
            is_alive=self._state is _State.RUNNING and not self._fault,
            fault=self._fault,
            num_calls=max(status.num_calls, len(self._questions)),
            activity=Activity(SILENCE, heard_ns) if is_silent else status.activity,
        )

    def submit(self, submission: Submission) -> None:
        self._need_running()
        self._send(Submit(submission))

    def cancel(
        self,
        id: RequestId,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.CANCELLED,
        num_tokens: int | None = None,
    ) -> None:
        self._send(Cancel(id, choice, reason, num_tokens))

    def provide_image(self, model: ModelId, salt: str, digest: bytes, image: PreparedImage | EngineError) -> None:
        found, error = (None, image) if isinstance(image, EngineError) else (image, None)
        self._send(Provide(model, salt, digest, found, error))

    async def begun(self) -> None:
        """Returns once the child has made its engine, or all has ended."""
        await self._has_begun.wait()

    async def load(self, source: ModelSource, options: LoadOptions) -> EngineModel:
        return await self._ask(LOAD, source, options)

    async def unload(self, id: ModelId) -> None:
        await self._ask(UNLOAD, id)

    async def check(self, source: ModelSource, options: LoadOptions) -> ModelPreview:
        """Checks a model, as a ModelCheck, in the process where it would run."""
        return await self._ask(CHECK, source, options)

    @property
    def cache(self) -> EngineCache:
        return self

    async def explain(self, model: ModelId, prompt: EncodedPrompt, salt: str) -> Explanation:
        return await self._ask(EXPLAIN, model, prompt, salt)

    async def num_stored(self, model: ModelId, prompt: EncodedPrompt, salt: str) -> int | None:
        return await self._ask(NUM_STORED, model, prompt, salt)

    async def settle(self, timeout_s: float) -> bool:
        return await self._ask(SETTLE, float(timeout_s))

    async def stats(self) -> CacheStats:
        return await self._ask(STATS)

    async def clear(self, model: str | None, salt: str | None) -> Cleared:
        return await self._ask(CLEAR, model, salt)

    async def clear_hot(self) -> Cleared:
        return await self._ask(CLEAR_HOT)

    async def _ask(self, question: Question[T], *arguments: object) -> T:
        self._need_running()
        return await self._questions.ask(question, *arguments)

    def _need_running(self) -> None:
        if self._state is not _State.RUNNING:
            raise ServerUnavailable(self._fault or "the engine is not running")

    def _send(self, message: ToChild) -> None:
        if self._channel is not None:
            self._channel.send(encoded(message))

    # ---- messages of the child ----------------------------------------------------------------------------------

    def _received(self, payload: bytes) -> None:
        if not self._has_greeted:
            self._has_greeted, self.is_outdated = True, payload != greeting()
            if self.is_outdated:
                self._broken = OUTDATED
                self._give_up()
            return
        try:
            self._take(decoded(payload, ToParent))
        except Exception as error:  # going on would leave a gap in some answer: the next engine resumes all of them
            _logger.exception("a message from the engine's process cannot be handled")
            self._broken = f"a message from the engine's process cannot be handled: {described(error)}"
            self._give_up()

    def _take(self, message: ToParent) -> None:
        self._heard_ns = self._clock.now_ns()
        match message:
            case Batch():
                self._status = message.status or self._status
                self._receive(message.opened())
            case EngineReply():
                self._questions.answered(message)
            case Begun():
                self._status = message.status
                self._has_begun.set()
            case Status():
                self._status = message.status
            case Broken():
                self._broken = message.why
            case Stopped():
                self._stopped_in_time = message.in_time

    def _give_up(self) -> None:
        """Closes the connection, which ends the child."""
        if self._channel is not None and not self._is_cut:
            self._channel.close()
            self._cut("")

    def _cut(self, _why: str) -> None:
        """Ends the process after the connection has ended: first by itself, because killing a process may strand the
        memory that its GPU has wired on macOS, until the next boot, and the lock of its store's writer."""
        loop, times = self._loop, self._timeouts
        assert loop is not None, "it was started"
        self._is_cut = True
        self._fault = self._broken or "the engine's process has ended"
        abort_s, kill_s = times.alone_s, times.alone_s + times.abort_s
        self._steps = (
            loop.call_later(abort_s, self._child.abort),
            loop.call_later(kill_s, self._child.kill),
            loop.call_later(kill_s + times.gone_s, self._end, "the engine's process does not end after it was killed"),
        )

    def _reaped(self, how: str) -> None:
        """Ends the engine with its process. Any thread."""
        assert self._loop is not None, "it was started"
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._gone, how)

    def _gone(self, how: str) -> None:
        if self._channel is not None:
            self._channel.finish()
        for step in self._steps:
            step.cancel()
        self._end(f"the engine's process {how}")

    def _end(self, why: str) -> None:
        """Ends the engine after the process has ended."""
        if self._state is _State.ENDED:
            return
        was_asked = self._state is _State.STOPPING
        self._state = _State.ENDED
        if not (was_asked or self._has_greeted) and installed_version() != _VERSION:  # it may not even start
            self.is_outdated, self._broken = True, OUTDATED
        self._fault = "" if was_asked else self._broken or why
        if not was_asked:
            _logger.error("%s", self._fault)
            now_ns = self._clock.now_ns()
            self._lost(self._fault)
            self._receive(StepBatch(now_ns, events=(FaultObserved("engine.process", self._fault, now_ns),)))
        reason = self._fault or "the server is stopping"
        self._questions.end(lambda: ServerUnavailable(reason))
        self._has_begun.set()
        self._over.set()


class Questions:
    """The questions under way. Each is answered, or ended with the engine."""

    def __init__(self, send: Callable[[ToChild], None]) -> None:
        self._send = send
        self._numbers = count()
        self._open: dict[int, tuple[Question[Any], asyncio.Future[Any]]] = {}

    def __len__(self) -> int:
        """Any thread."""
        return len(self._open)

    async def ask(self, question: Question[T], *arguments: object) -> T:
        """Sends a question and returns its answer. Raises the child's error, or the engine's end. Cancellation
        withdraws the question."""
        call = next(self._numbers)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._open[call] = question, answer
        try:
            self._send(Ask(call, question.name, raw(arguments)))
            return await answer
        except asyncio.CancelledError:
            if call in self._open:
                self._send(Withdraw(call))
            raise
        finally:
            self._open.pop(call, None)

    def answered(self, message: EngineReply) -> None:
        """Takes an answer. The answer to a withdrawn question is ignored. Raises msgspec.MsgspecError."""
        question, answer = self._open.pop(message.call, (None, None))
        if question is None or answer is None or answer.done():
            return
        if message.error is not None:
            answer.set_exception(message.error.to_error())
        else:
            answer.set_result(decoded(message.value, question.answer))

    def end(self, make: Callable[[], DomainError]) -> None:
        """Ends every question, because no more answers will arrive. `make` returns an error for each, since a raised
        error keeps its traceback."""
        for _, answer in self._open.values():
            if not answer.done():
                answer.set_exception(make())
        self._open.clear()
