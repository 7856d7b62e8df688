"""An EngineSupervisor over engines on threads that are lost when a test says so, on a scripted clock."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from adapters.fake.environment import FakeClock
from application.ports.engine import Ended, EngineError, EngineModel, EngineStatus, StepBatch, Submission, Tokens
from application.ports.model_repository import ModelPreview
from application.services.text_side.supervision.engine_supervisor import GIVE_UP_S, EngineSupervisor
from domain.health.engine_health import Activity
from domain.ids import ModelId, RequestId
from domain.models.model_card import LoadOptions, ModelSource
from tests.support.engines.engine_client import MODEL, EngineClient, engine_on_a_thread, source
from tests.support.patience import PATIENCE_S

ENDLESS = 20_000


class Mortal:
    """An EngineInstance on a thread, which is lost when `lose` is called. `begins` and `loads`: what a start and a load
    do before they are done."""

    def __init__(
        self,
        lost: Callable[[str], None],
        begins: Callable[[], Awaitable[None]],
        loads: Callable[[ModelId], Awaitable[None]],
    ) -> None:
        self.lost = lost
        self._begins = begins
        self._loads = loads
        self._shown: dict[str, Any] = {}
        self._receive: Callable[[StepBatch], None] = lambda _batch: None
        self._engine = engine_on_a_thread()
        self.is_deaf = self.is_outdated = False
        self.submitted: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def start(self, receive: Callable[[StepBatch], None]) -> None:
        self._receive = receive
        self._engine.start(lambda batch: self._report(batch))

    def submit(self, submission: Submission) -> None:
        self.submitted.append(submission.id)
        self._engine.submit(submission)

    def computes(self, *ids: str) -> None:
        """It reports that it begins to compute these."""
        self._receive(StepBatch(0, computing=tuple(map(RequestId, ids))))

    def gets_on(self, id: str, token: int) -> None:
        """It reports one more token."""
        self._receive(StepBatch(0, ((RequestId(id), 0, Tokens((token,))),)))

    def _report(self, batch: StepBatch) -> None:
        """What it computes by itself; a test that is deaf to that reports in its place."""
        if not self.is_deaf:
            self._receive(batch)

    async def load(self, source: ModelSource, options: LoadOptions) -> EngineModel:
        await self._loads(source.id)
        return await self._engine.load(source, options)

    def status(self) -> EngineStatus:
        return replace(self._engine.status(), **self._shown)

    def loads_since(self, at_ns: int) -> None:
        """It shows that a piece of a load ended then, and the next one began."""
        activity = Activity("load", at_ns)
        self._shown = {"last_progress_ns": at_ns, "last_step_ns": at_ns, "num_calls": 1, "activity": activity}

    def abandon(self) -> None:
        self.lost("abandoned")

    async def begun(self) -> None:
        await self._begins()

    async def check(self, source: ModelSource, _options: LoadOptions) -> ModelPreview:
        await self._loads(source.id)
        return ModelPreview(weight_bytes=7)


class World:
    """An EngineSupervisor, its lives, and the sleeps it asked for; `may_sleep` lets them end, `gives_up` the
    longest, in which open work waits for an engine."""

    def __init__(self) -> None:
        self.lives: list[Mortal] = []
        self._is_deaf = False
        self.delays: list[float] = []
        self.may_sleep = asyncio.Event()
        self.may_sleep.set()
        self.gives_up = asyncio.Event()
        self.begins: Callable[[], Awaitable[None]] = self._at_once
        self.loads: Callable[[ModelId], Awaitable[None]] = self._nothing
        self.clock = FakeClock(tick_ns=10)
        self.outdated: list[str] = []
        self.engine = EngineSupervisor(self._make, self.clock, outdated=self.outdated.append, sleep=self._sleep)
        self.client = EngineClient(self.engine)

    async def lose(self) -> None:
        """The present one; it is stopped, unheard."""
        life = self.lives[-1]
        life.lost("planted")
        assert await life.stop(PATIENCE_S)

    async def living(self) -> None:
        await self.client.until(lambda: not self.engine.status().fault, "an engine")

    async def failure(self, id: str) -> EngineError:
        """Returns the error with which a request ends."""
        error = (await self.client.end(id)).error
        assert error is not None
        return error

    def is_open(self, *ids: str) -> bool:
        """Returns whether none of these requests has ended."""
        return not [item for id in ids for item in self.client.items(id) if isinstance(item, Ended)]

    async def streaming(self, *ids: str, model: ModelId = MODEL) -> None:
        """Submits endless requests, and returns once each has a token."""
        for id in ids:
            self.client.submit(id, num_tokens=ENDLESS, model=model)
            await self.client.until_told(id, Tokens)

    def _make(self, lost: Callable[[str], None]) -> Any:
        self.lives.append(Mortal(lost, lambda: self.begins(), lambda id: self.loads(id)))
        self.lives[-1].is_deaf = self._is_deaf
        return self.lives[-1]

    @property
    def is_deaf(self) -> bool:
        """Only what the test has the engines report is heard of them, from now on."""
        return self._is_deaf

    @is_deaf.setter
    def is_deaf(self, is_deaf: bool) -> None:
        self._is_deaf = is_deaf
        for life in self.lives:
            life.is_deaf = is_deaf

    async def _sleep(self, delay_s: float) -> None:
        if delay_s == GIVE_UP_S:
            await self.gives_up.wait()
            return
        self.delays.append(delay_s)
        await self.may_sleep.wait()

    async def _at_once(self) -> None:
        return

    async def _nothing(self, _id: ModelId) -> None:
        return


def in_world(work: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        world.engine.start(world.client.receive)
        try:
            await world.engine.load(source(MODEL), LoadOptions())
            await work(world)
        finally:
            assert await world.engine.stop(PATIENCE_S)
            for life in world.lives:
                await life.stop(PATIENCE_S)

    asyncio.run(run())
