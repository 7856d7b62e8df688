"""The model pool over the engine loop: more models wanted than fit, broken ones, clients that leave while they wait."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from adapters.fake.clock import FakeClock
from adapters.fake.engine import FakeEngine
from adapters.fake.models import FakeModels
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizers
from application.services.engine_loop import EngineLoop
from application.services.model_pool import ModelPool
from application.services.stream_hub import StreamHub
from application.settings import ModelSettings
from domain.errors import ModelLoadFailed, ModelNotFound
from domain.ids import ModelId
from domain.scheduling import StepLimits
from tests.support.caches import prefix_cache
from tests.support.recording import RecordingEvents

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")
PATIENCE_S = 20.0


class Bench:
    """A pool of `max_loaded` toy models over a running engine."""

    def __init__(self, max_loaded: int, options: Mapping[ModelId, FakeOptions] | None = None, **settings: Any) -> None:
        self.engine = FakeEngine(options)
        self.events = RecordingEvents()
        self.loop = EngineLoop(
            lambda: self.engine, StreamHub(), self.events, FakeClock(), prefix_cache(), StepLimits(8, 64, 32), 100
        )
        self.models = FakeModels(("a", "b", "c"))
        self.pool = ModelPool(
            self.models, FakeTokenizers(), self.loop, ModelSettings(default="a", max_loaded=max_loaded, **settings)
        )

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a test's coroutine with the engine started; a livelock ends as a TimeoutError."""
        self.loop.start()
        try:
            asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
        finally:
            assert self.loop.stop(PATIENCE_S)

    def loads(self) -> list[ModelId]:
        return [event.id for event in self.events.of("ModelLoaded")]  # type: ignore[union-attr]

    def loaded(self) -> set[ModelId]:
        return {model.description.id for model in self.engine.loaded}

    async def use(self, id: ModelId) -> None:
        """One short request."""
        served = await self.pool.acquire(id)
        assert served.source.id == id
        assert id in self.loaded()
        await asyncio.sleep(0)
        self.pool.release(served)


def test_two_models_wanted_at_once_where_one_fits_are_both_served() -> None:
    bench = Bench(max_loaded=1)

    async def work() -> None:
        await asyncio.gather(bench.use(A), bench.use(B))

    bench.run(work)
    assert sorted(bench.loads()) == [A, B]


def test_clients_of_three_models_where_one_fits_are_all_served_with_few_loads() -> None:
    bench = Bench(max_loaded=1)

    async def client(id: ModelId) -> None:
        for _ in range(5):
            await bench.use(id)

    async def work() -> None:
        await asyncio.gather(*(client(id) for id in (A, B, C) for _ in range(4)))

    bench.run(work)
    assert len(bench.loads()) <= 3 * 5


def test_a_broken_model_evicts_a_good_one_no_more_than_once() -> None:
    bench = Bench(max_loaded=1, options={B: FakeOptions(load_error="its weights do not fit its layers")})

    async def work() -> None:
        await bench.use(A)
        for _ in range(4):
            with pytest.raises(ModelLoadFailed, match="do not fit"):
                await bench.use(B)
            await bench.use(A)

    bench.run(work)
    assert bench.loads() == [A, A]


def test_an_unknown_model_evicts_nothing() -> None:
    bench = Bench(max_loaded=1)

    async def work() -> None:
        await bench.use(A)
        with pytest.raises(ModelNotFound):
            await bench.use(ModelId("nonsense"))
        await bench.use(A)

    bench.run(work)
    assert bench.loads() == [A]
