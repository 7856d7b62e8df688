"""A RevivedEngine over engines on threads that are lost when a test says so, on a scripted clock."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from adapters.fake.clock import FakeClock
from application.ports.engine import EngineModel, EngineStatus
from application.ports.model_repository import ModelPreview
from application.services.text_side.revived_engine import RevivedEngine
from domain.engine_health import Activity
from domain.ids import ModelId
from domain.model_card import LoadOptions, ModelSource
from tests.support.engine_client import MODEL, EngineClient, engine_on_a_thread, source
from tests.support.patience import PATIENCE_S


class Mortal:
    """A MortalEngine on a thread, which is lost when `lose` is called. `begins` and `loads`: what a start and a load
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
        self._engine = engine_on_a_thread()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

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
    """A RevivedEngine, its lives, and the sleeps it asked for; `may_sleep` lets them end."""

    def __init__(self) -> None:
        self.lives: list[Mortal] = []
        self.delays: list[float] = []
        self.may_sleep = asyncio.Event()
        self.may_sleep.set()
        self.begins: Callable[[], Awaitable[None]] = self._at_once
        self.loads: Callable[[ModelId], Awaitable[None]] = self._nothing
        self.clock = FakeClock(tick_ns=10)
        self.engine = RevivedEngine(self._make, self.clock, sleep=self._sleep)
        self.client = EngineClient(self.engine)

    async def lose(self) -> None:
        """The present one; it is stopped, unheard."""
        life = self.lives[-1]
        life.lost("planted")
        assert await life.stop(PATIENCE_S)

    async def living(self) -> None:
        await self.client.until(lambda: not self.engine.status().fault, "an engine")

    def _make(self, lost: Callable[[str], None]) -> Any:
        self.lives.append(Mortal(lost, lambda: self.begins(), lambda id: self.loads(id)))
        return self.lives[-1]

    async def _sleep(self, delay_s: float) -> None:
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


__all__ = ("Mortal", "World", "in_world")
