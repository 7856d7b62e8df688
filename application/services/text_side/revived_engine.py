"""An engine that may be lost, and is made again: what was open goes on behind what it has put out.

    LIVING ──lost──► REVIVING: wait (RestartPace), start another one, load the models again ──► LIVING
       └──stop──► ENDED ◄──stop──┘

Whoever has an open request sees a pause. It is submitted again with all that was told of it (`WorkTable`), which
is how a preempted sequence goes on as well. One that was there at MAX_LOSSES losses may be what ends the engine: it
ends, with EngineLost; so does a load. What is cancelled meanwhile ends at once. Questions to the prefix cache are not
asked again.

Telemetry has a lost choice preempted (RequestPreempted), and EngineRestarted when another engine has taken over.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TypeVar

from application.ports.clock import Clock
from application.ports.engine import (
    EngineCache,
    EngineModel,
    EngineStatus,
    StepBatch,
    Submission,
)
from application.ports.model_repository import ModelPreview
from application.services.text_side.downtime import Downtime
from application.services.text_side.mortal_engine import MakeMortal, MortalEngine
from application.services.text_side.open_work import OpenWork
from application.services.text_side.revived_cache import RevivedCache
from application.services.text_side.wanted_models import WantedModels
from application.services.text_side.work_table import MAX_LOSSES, WorkTable
from domain.errors import DomainError, EngineLost, ServerUnavailable
from domain.ids import ModelId, RequestId
from domain.model_card import LoadOptions, ModelSource
from domain.request import FinishReason
from domain.restart_pace import RestartPace

T = TypeVar("T")


class _State(Enum):
    NEW = "new"
    LIVING = "living"
    REVIVING = "reviving"
    ENDED = "ended"


class RevivedEngine:
    """An Engine. Event loop only, but for `status` and `check`."""

    def __init__(
        self,
        make: MakeMortal,
        clock: Clock,
        *,
        pace: RestartPace | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._make = make
        self._clock = clock
        self._pace = pace or RestartPace()
        self._sleep = sleep
        self._state = _State.NEW
        self._life = 0
        self._engine = make(partial(self._lost, 1))
        self._down = Downtime(clock.now_ns(), self._engine.status(), "")
        """The present one, while there is no engine; else the last."""
        self._living_ns = clock.now_ns()
        """Since when the present engine has been there, with all that it should have."""
        self._receive: Callable[[StepBatch], None] = lambda _batch: None
        self._table = WorkTable()
        self._models = WantedModels()
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_engine = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_time = True
        self.cache: EngineCache = RevivedCache(self._present)

    def start(self, receive: Callable[[StepBatch], None]) -> None:
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._begin()
        self._live()

    async def stop(self, timeout_s: float) -> bool:
        if self._state is not _State.ENDED:
            is_there = self._has_engine.is_set() or self._state is _State.NEW
            self._state = _State.ENDED
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if is_there:
                self._in_time = await self._engine.stop(timeout_s)
            self._has_engine.set()  # who waits for one is told that there is none
            stopping = ServerUnavailable("the server is stopping")
            self._tell(self._table.failed(stopping, self._table.works, self._clock.now_ns()))
        return self._in_time

    def status(self) -> EngineStatus:
        if self._state is not _State.REVIVING:
            status = self._engine.status()
            is_ending = self._state is _State.LIVING and bool(status.fault)  # it will be lost in a moment
            return replace(status, is_alive=True) if is_ending else status
        return self._down.status(self._table.num_choices, self._engine.status() if self._has_engine.is_set() else None)

    def submit(self, submission: Submission) -> None:
        if self._state in (_State.NEW, _State.ENDED):
            raise ServerUnavailable(self._down.why or "the engine is not running")
        work = self._table.add(submission)
        if self._state is _State.REVIVING:
            return
        if self._models.lacks(submission.model):
            self._run(self._send_when_loaded(work))
            return
        try:
            self._table.send(work, self._engine)
        except DomainError:
            self._table.forget(work)
            raise

    def cancel(
        self,
        id: RequestId,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.CANCELLED,
        num_tokens: int | None = None,
    ) -> None:
        work = self._table.get(id)
        if work is None:
            return
        work.cancel(choice, reason, num_tokens)
        if self._table.is_sent(work):
            self._engine.cancel(id, choice, reason=reason, num_tokens=num_tokens)
        elif self._state is not _State.ENDED:
            # Not from inside a call of whoever receives it.
            asyncio.get_running_loop().call_soon(self._end_cancelled, work, choice, reason, num_tokens)

    async def load(self, source: ModelSource, options: LoadOptions) -> EngineModel:
        model = await self._asked(source.id, lambda engine: engine.load(source, options))
        self._models.add(source, options)
        return model

    async def unload(self, id: ModelId) -> None:
        self._models.remove(id)
        engine, life = await self._next(), self._life
        try:
            await engine.unload(id)
        except ServerUnavailable:
            if self._is_present(life):
                raise

    def check(self, source: ModelSource, options: LoadOptions) -> ModelPreview:
        """A ModelCheck, where the model would run. Any thread but the loop's."""
        if (loop := self._loop) is None:
            raise ServerUnavailable("the engine is not running")
        asked = self._asked(source.id, lambda engine: engine.check(source, options))
        return asyncio.run_coroutine_threadsafe(asked, loop).result()

    def abandon(self) -> None:
        """End the present engine, which hangs: another one takes over. Any thread; nothing happens without one."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._abandon)

    def _abandon(self) -> None:
        if self._state is not _State.ENDED and self._has_engine.is_set():
            self._engine.abandon()

    # ---- the present engine ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the engine that was made."""
        self._life += 1
        self._down.num_tries += 1
        self._models.begin()
        self._table.begin()
        self._has_engine.set()
        self._engine.start(partial(self._took, self._life))

    def _live(self) -> None:
        """It has all that it should have."""
        self._state, self._living_ns = _State.LIVING, self._clock.now_ns()

    def _present(self) -> MortalEngine:
        if self._state is _State.REVIVING:
            raise ServerUnavailable(self._down.fault)
        return self._engine

    async def _next(self) -> MortalEngine:
        """The present one, or the one that comes; before the start and after the stop, one that refuses."""
        if self._state is not _State.NEW:
            await self._has_engine.wait()
        return self._engine

    async def _asked(self, id: ModelId, ask: Callable[[MortalEngine], Awaitable[T]]) -> T:
        """Of a model's load: what an engine was lost over is asked of the next one."""
        for _ in range(MAX_LOSSES):
            engine, life = await self._next(), self._life
            try:
                return await ask(engine)
            except ServerUnavailable:
                if self._is_present(life):
                    raise
        why = f"the engine was lost {MAX_LOSSES} times while it loaded {id}: {self._down.why}"
        raise EngineLost(why, param="model")

    def _is_there(self, life: int) -> bool:
        """It was not lost."""
        return life == self._life and self._has_engine.is_set()

    def _is_present(self, life: int) -> bool:
        """And has all that it should have."""
        return self._state is not _State.REVIVING and life == self._life

    def _took(self, life: int, batch: StepBatch) -> None:
        if not self._is_there(life):  # it was lost, and what is open goes on elsewhere
            if batch.events:
                self._receive(StepBatch(batch.at_ns, events=batch.events))
            return
        self._table.took(batch)
        self._receive(batch)

    # ---- lost and revived --------------------------------------------------------------------------------------

    def _lost(self, life: int, why: str) -> None:
        if not self._is_there(life):
            return
        self._has_engine.clear()
        if self._state is _State.ENDED:
            return
        now_ns, lived_s = self._clock.now_ns(), 0.0
        if self._state is _State.LIVING:
            lived_s = (now_ns - self._living_ns) / 1e9
            self._down = Downtime(now_ns, self._engine.status(), why)
        self._state, self._down.why = _State.REVIVING, why
        self._tell(self._table.lost(why, now_ns))
        delay_s = self._pace.next_delay_s(lived_s)
        self._down.is_brief = not delay_s
        self._run(self._revive(delay_s))

    async def _revive(self, delay_s: float) -> None:
        if delay_s:
            await self._sleep(delay_s)
        self._engine = self._make(partial(self._lost, self._life + 1))
        self._begin()
        life = self._life
        await self._engine.begun()
        for id in self._models.ids:
            if self._is_there(life):
                await self._load_again(id)
        if not self._is_there(life):
            return  # lost again, and somebody else sees to it
        self._live()
        over = self._down.over(self._table.num_choices, self._clock.now_ns())
        for work in self._table.works:
            self._table.send(work, self._engine)
        self._receive(StepBatch(over.at_ns, events=(over,)))

    async def _load_again(self, id: ModelId) -> None:
        """What is open for a model that cannot be loaded any more ends with the reason."""
        engine = self._engine
        try:
            await self._models.load(id, engine)
        except DomainError as error:
            if engine is self._engine and self._has_engine.is_set():
                self._models.miss(id)
                works = [work for work in self._table.works if work.submission.model == id]
                self._tell(self._table.failed(error, works, self._clock.now_ns()))

    async def _send_when_loaded(self, work: OpenWork) -> None:
        await self._load_again(work.submission.model)
        if self._state is _State.LIVING and work.choices and not self._table.is_sent(work):
            self._table.send(work, self._engine)

    def _end_cancelled(self, work: OpenWork, choice: int | None, reason: FinishReason, num_tokens: int | None) -> None:
        if self._table.is_sent(work):  # it was sent in between
            self._engine.cancel(work.submission.id, choice, reason=reason, num_tokens=num_tokens)
        else:
            self._tell(self._table.cancelled(work, self._clock.now_ns()))

    def _tell(self, batch: StepBatch | None) -> None:
        if batch is not None:
            self._receive(batch)

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


__all__ = ("MAX_LOSSES", "RevivedEngine")
