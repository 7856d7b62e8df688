"""An Engine that outlives its engine instances: a lost one is replaced, and open work continues where it stopped.

    RUNNING ──lost──► RESTARTING: wait, start another one, load the models again ──► RUNNING
       └──stop──► ENDED ◄──stop──┘

Clients of running requests see a pause; `open_work` decides what is submitted again, and in which order. After the
first loss a new engine is started at once, and new requests wait for it. While losses repeat (an engine that had all
its models for less than CALM_S), the pauses grow and new requests are refused. When no engine could be started for
GIVE_UP_S, all open work ends with an error, and starting continues. If the very first engine cannot be made, nothing
waits for a second one.

An engine that is lost because the package was upgraded is the last one: all work ends with ServerUnavailable, and
`outdated` is called so that the server ends and its supervisor starts the new version.

A load under way at a loss is taken for its cause: it fails, and is refused for a while (`load_failures`). Calls of the
prefix cache are not repeated. EngineRestarted is emitted when another engine has taken over.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TypeVar

from application.events import EngineRestarted
from application.ports.clock import Clock
from application.ports.engine import (
    EngineCache,
    EngineError,
    EngineInstance,
    EngineModel,
    EngineStatus,
    MakeInstance,
    StepBatch,
    Submission,
)
from application.ports.model_repository import ModelPreview
from application.ports.vision import PreparedImage
from application.services.text_side.answers.open_requests import RETRY_AFTER_S
from application.services.text_side.models.load_failures import MAX_RELOADS, BlamedLoads
from application.services.text_side.supervision.open_work import OpenWork, Work
from domain.errors import DomainError, ServerUnavailable
from domain.ids import ModelId, RequestId
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.request import FinishReason

T = TypeVar("T")

CALM_S = 60.0
"""An engine that had all its models for this long was not lost because of its start: it is replaced at once."""

MAX_DELAY_S = 30.0
"""The longest pause between two attempts to start an engine."""

GIVE_UP_S = 60.0
"""The time after which open work ends while no engine can be started."""


class _State(Enum):
    NEW = "new"
    RUNNING = "running"
    RESTARTING = "restarting"
    ENDED = "ended"


class _Instance:
    """One engine instance. `is_present`: it was started and is not lost. `is_made`: it said that it has begun."""

    def __init__(self, make: MakeInstance, lost: Callable[["_Instance", str], None]) -> None:
        self.is_present = self.is_made = False
        self.engine = make(partial(lost, self))


class EngineSupervisor:
    """An Engine that replaces lost engine instances. Event loop only, except for `status` and `check`."""

    def __init__(
        self,
        make: MakeInstance,
        clock: Clock,
        *,
        outdated: Callable[[str], object] = lambda _reason: None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`outdated`: called once on the event loop, with the reason, when this process can start no other engine."""
        self._make = make
        self._clock = clock
        self._outdated = outdated
        self._sleep = sleep
        self._state = _State.NEW
        self._instance = _Instance(make, self._lost)
        self._was_ever_made = False
        self._since_ns = clock.now_ns()  # of the present state
        self._last = self._instance.engine.status()  # of the lost engine
        self._reason = ""
        self._num_attempts, self._num_short_lived = 0, -1  # attempts to start one; short-lived engines
        self._is_overdue = False  # no engine could be started for GIVE_UP_S
        self._deadline: asyncio.Task[object] | None = None
        self._receive: Callable[[StepBatch], None] = lambda _batch: None
        self._work = OpenWork(clock, lambda batch: self._receive(batch))
        self._loaded: dict[ModelId, tuple[ModelSource, LoadOptions]] = {}
        self._missing: set[ModelId] = set()  # wanted models that the present engine could not load
        self._loads = BlamedLoads(clock)  # checks of models included
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_available = asyncio.Event()  # set while an engine is present, and once waiting is over
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_time = True

    def start(self, receive: Callable[[StepBatch], None]) -> None:
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._start_engine()
        self._begin_serving()
        self._run(self._await_start())

    async def stop(self, timeout_s: float) -> bool:
        if self._state is not _State.ENDED:
            is_present = self._instance.is_present or self._state is _State.NEW
            self._state = _State.ENDED
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if is_present:
                self._in_time = await self._engine.stop(timeout_s)
            self._is_available.set()
            self._work.fail(ServerUnavailable("the server is stopping"))
        return self._in_time

    def status(self) -> EngineStatus:
        """While another engine is started at once, the status is its own. After repeated losses it is that of an engine
        that ended at the first loss, except for the `activity` of the next engine."""
        if self._state is _State.RUNNING:
            status = self._engine.status()  # with a fault it is about to be reported as lost
            num_waiting = max(0, self._work.num_choices - status.num_running)  # submissions it has not taken count too
            is_alive = status.is_alive or bool(status.fault)
            return replace(status, is_alive=is_alive, num_waiting=num_waiting, last_loss=self._reason)
        if self._state is not _State.RESTARTING:
            return self._engine.status()
        next_engine = self._engine.status() if self._instance.is_present else None
        shown = next_engine if self._is_first_loss else None
        return replace(
            self._last,
            is_alive=self._is_first_loss,
            is_busy=bool(self._work.num_choices),
            last_progress_ns=max(self._since_ns, shown.last_progress_ns if shown else 0),
            last_step_ns=max(self._since_ns, shown.last_step_ns if shown else 0),
            num_calls=shown.num_calls if shown else 0,
            num_waiting=self._work.num_choices,
            num_running=0,
            activity=next_engine.activity if next_engine else None,
            fault=self._unavailable().message,
            last_loss=self._reason,
            loading=shown.loading if shown else None,
        )

    @property
    def cache(self) -> EngineCache:
        """The prefix cache of the present engine. Raises ServerUnavailable while another engine is started."""
        if self._state is _State.RESTARTING:
            raise self._unavailable()
        return self._engine.cache

    def submit(self, submission: Submission) -> None:
        if self._state in (_State.NEW, _State.ENDED):
            raise ServerUnavailable(self._reason or "the engine is not running")
        if self._state is _State.RESTARTING and not self._is_first_loss:
            raise self._unavailable()
        work = self._work.add(submission)
        if self._state is _State.RESTARTING:
            return
        if submission.model in self._missing:
            self._run(self._send_when_loaded(work))
        elif work in self._work.sendable():
            try:
                self._work.send(work, self._engine)
            except Exception:
                self._work.forget(work)
                raise

    def cancel(
        self,
        id: RequestId,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.CANCELLED,
        num_tokens: int | None = None,
    ) -> None:
        work = self._work.get(id)
        if work is None:
            return
        work.cancel(choice, reason, num_tokens)
        if work.is_sent:
            self._engine.cancel(id, choice, reason=reason, num_tokens=num_tokens)
        elif self._state is not _State.ENDED:
            # The receiver must not be called from inside one of its own calls.
            asyncio.get_running_loop().call_soon(self._end_cancelled, work, choice, reason, num_tokens)

    def provide_image(self, model: ModelId, salt: str, digest: bytes, image: PreparedImage | EngineError) -> None:
        if self._instance.is_present:
            self._engine.provide_image(model, salt, digest, image)

    async def load(self, source: ModelSource, options: LoadOptions) -> EngineModel:
        model = await self._call(source, lambda engine: engine.load(source, options))
        self._loaded[source.id] = source, options
        self._missing.discard(source.id)
        return model

    async def unload(self, id: ModelId) -> None:
        self._loaded.pop(id, None)
        self._missing.discard(id)
        instance = await self._available()
        try:
            await instance.engine.unload(id)
        except ServerUnavailable:
            if instance.is_present:
                raise

    def check(self, source: ModelSource, options: LoadOptions) -> ModelPreview:
        """A ModelCheck that runs in the engine's process. Any thread but the event loop's."""
        if (loop := self._loop) is None:
            raise ServerUnavailable("the engine is not running")
        checking = self._call(source, lambda engine: engine.check(source, options))
        return asyncio.run_coroutine_threadsafe(checking, loop).result()

    def abandon(self) -> None:
        """Ends the present engine, if any, because it hangs: another one takes over."""
        if self._state is not _State.ENDED and self._instance.is_present:
            self._engine.abandon()

    # ---- the present engine ------------------------------------------------------------------------------------

    @property
    def _engine(self) -> EngineInstance:
        return self._instance.engine

    def _start_engine(self) -> None:
        """Starts the engine instance that was made."""
        self._num_attempts += 1
        self._missing.clear()
        self._loads.begin()
        self._instance.is_present = True
        self._is_available.set()
        self._engine.start(partial(self._received, self._instance))

    async def _await_start(self) -> None:
        instance = self._instance
        await instance.engine.begun()
        if instance.is_present:
            instance.is_made = self._was_ever_made = True

    def _begin_serving(self) -> None:
        """Begins to send work to the engine, which has its models."""
        self._state, self._since_ns = _State.RUNNING, self._clock.now_ns()
        self._is_overdue = False
        if self._deadline is not None:
            self._deadline.cancel()

    @property
    def _is_first_loss(self) -> bool:
        """Another engine is started at once."""
        return self._num_short_lived <= 0

    def _unavailable(self) -> ServerUnavailable:
        return ServerUnavailable(f"the engine is being restarted: {self._reason}", retry_after_s=RETRY_AFTER_S)

    async def _available(self) -> _Instance:
        """Returns the present engine or waits for the next one. Before the start and after the stop, the engine that is
        returned refuses every call."""
        if self._state is not _State.NEW:
            await self._is_available.wait()
        if self._is_overdue and not self._instance.is_present:
            raise self._unavailable()
        return self._instance

    async def _call(self, source: ModelSource, call: Callable[[EngineInstance], Awaitable[T]]) -> T:
        """Returns the engine's answer about a model. A question that was sent to an engine that is lost before it was
        made goes to the next one."""
        while True:
            instance = await self._available()
            try:
                return await self._loads.watch(source, partial(call, instance.engine))
            except ServerUnavailable:
                if instance.is_present or self._state is _State.ENDED or not self._was_ever_made:
                    raise

    def _received(self, instance: _Instance, batch: StepBatch) -> None:
        if not instance.is_present:  # it was lost, and its work continues elsewhere
            if batch.events:
                self._receive(StepBatch(batch.at_ns, events=batch.events))
            return
        self._work.received(batch)
        self._receive(batch)
        if self._state is _State.RUNNING and self._work.num_unsent:
            self._work.send_all(self._engine, self._missing)

    # ---- lost and replaced -------------------------------------------------------------------------------------

    def _lost(self, instance: _Instance, why: str) -> None:
        if not instance.is_present:
            return
        instance.is_present = False
        self._is_available.clear()
        if self._state is _State.ENDED:
            return
        if self._engine.is_outdated:
            self._finish(why)
            return
        now_ns, lived_s = self._clock.now_ns(), 0.0
        if self._state is _State.RUNNING:
            lived_s = (now_ns - self._since_ns) / 1e9
            self._since_ns, self._last, self._num_attempts = now_ns, self._engine.status(), 0
            self._deadline = self._run(self._give_up_after_timeout())
        self._state, self._reason = _State.RESTARTING, why
        is_explained = instance.is_made and self._loads.blame(why)
        self._work.lost(why, is_explained=is_explained)
        if not self._was_ever_made:
            self._work.fail(ServerUnavailable(why))
        elif self._is_overdue:
            self._give_up()
        self._num_short_lived = 0 if lived_s >= CALM_S else self._num_short_lived + 1
        self._run(self._restart(0.0 if self._is_first_loss else min(MAX_DELAY_S, 2.0 ** (self._num_short_lived - 1))))

    def _finish(self, why: str) -> None:
        """Ends all open work: the lost engine was the last one."""
        self._state, self._reason = _State.ENDED, why
        for task in tuple(self._tasks):
            task.cancel()
        self._is_available.set()
        self._work.fail(ServerUnavailable(why, retry_after_s=RETRY_AFTER_S))
        self._outdated(why)

    async def _give_up_after_timeout(self) -> None:
        """Gives up after GIVE_UP_S, unless an engine was made and loads its models: that one is the last attempt."""
        await self._sleep(GIVE_UP_S)
        self._is_overdue = True
        if not (self._instance.is_present and self._instance.is_made):
            self._give_up()

    def _give_up(self) -> None:
        self._is_available.set()
        self._work.fail(ServerUnavailable(f"no engine could be started for {GIVE_UP_S:.0f} s: {self._reason}"))

    async def _restart(self, delay_s: float) -> None:
        if delay_s:
            await self._sleep(delay_s)
        instance = self._instance = _Instance(self._make, self._lost)
        self._start_engine()
        await self._await_start()
        for id in tuple(self._loaded):
            if instance.is_present:
                await self._load_again(id)
        if not instance.is_present:
            return  # lost again: another task replaces it
        now_ns, down_since_ns = self._clock.now_ns(), self._since_ns
        self._begin_serving()
        num_resumed = self._work.num_choices
        self._work.send_all(self._engine, self._missing)
        over = EngineRestarted(self._reason, num_resumed, now_ns - down_since_ns, self._num_attempts, now_ns)
        self._receive(StepBatch(now_ns, events=(over,)))

    async def _load_again(self, id: ModelId) -> None:
        """Loads a model in the present engine. If that fails, the model's open work ends with the reason."""
        instance = self._instance
        if (wanted := self._loaded.get(id)) is None:
            return  # it was unloaded while another one was loaded
        try:
            await self._loads.watch(wanted[0], partial(instance.engine.load, *wanted), MAX_RELOADS)
        except DomainError as error:
            if instance.is_present:
                self._missing.add(id)
                self._work.fail(error, id)
            return
        self._missing.discard(id)
        if id not in self._loaded:  # it was unloaded meanwhile
            with suppress(ServerUnavailable):
                await instance.engine.unload(id)

    async def _send_when_loaded(self, work: Work) -> None:
        await self._load_again(work.submission.model)
        if self._state is _State.RUNNING and work.choices:
            self._work.send_all(self._engine, self._missing)

    def _end_cancelled(self, work: Work, choice: int | None, reason: FinishReason, num_tokens: int | None) -> None:
        if work.is_sent:  # it was sent in between
            self._engine.cancel(work.submission.id, choice, reason=reason, num_tokens=num_tokens)
            return
        self._work.end_cancelled(work)
        if self._state is _State.RUNNING:
            self._work.send_all(self._engine, self._missing)

    def _run(self, work: Coroutine[object, object, object]) -> asyncio.Task[object]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
