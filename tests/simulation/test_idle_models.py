"""Models with a time to live, on a clock that jumps: who is not used for so long goes, and nobody else."""

import asyncio

from adapters.fake.engine import FakeModels
from adapters.fake.tokenizer import FakeTokenizers
from application.ports.engine import EngineModel, EngineStatus
from application.services.text_side.models.model_pool import ModelPool
from application.settings import ModelSettings, ModelTable
from domain.duration import Duration
from domain.ids import ModelId
from domain.models.model_card import LoadOptions, ModelSource
from tests.simulation.test_model_pool_runs import LoopClock, described
from tests.support.engines.virtual_time import run_in_virtual_time
from tests.support.processes.lanes import InlineLane

A, B = ModelId("a"), ModelId("b")
TTL_S = 60


class QuickHost:
    """An Engine whose loads take no time."""

    def __init__(self) -> None:
        self.resident: set[ModelId] = set()

    def status(self) -> EngineStatus:
        return EngineStatus(
            is_alive=True, is_busy=False, last_progress_ns=0, last_step_ns=0, num_waiting=0, num_running=0
        )

    async def load(self, source: ModelSource, options: LoadOptions) -> EngineModel:
        self.resident.add(source.id)
        return EngineModel(described(source.id, 1))

    async def unload(self, id: ModelId) -> None:
        self.resident.remove(id)


def pool_over(host: QuickHost, **tables: ModelTable) -> ModelPool:
    return ModelPool(
        repository=FakeModels((A, B)),
        tokenizers=FakeTokenizers(),
        engine=host,
        settings=ModelSettings(default="a", idle_ttl=Duration(TTL_S)),
        clock=LoopClock(),
        workers=InlineLane(),
        tables=tables,
    )


async def use(pool: ModelPool, id: ModelId, seconds: float = 0) -> None:
    served = await pool.acquire(id)
    await asyncio.sleep(seconds)
    pool.release(served)


def test_an_idle_model_goes_after_its_time_and_not_before() -> None:
    async def work() -> None:
        host = QuickHost()
        pool = pool_over(host)
        await use(pool, A, seconds=10 * TTL_S)
        await asyncio.sleep(TTL_S - 1)
        assert host.resident == {A}
        await use(pool, A)  # and its time begins anew
        await asyncio.sleep(TTL_S - 1)
        assert host.resident == {A}
        await asyncio.sleep(2)
        assert host.resident == set()
        await use(pool, A)
        assert host.resident == {A}
        pool.close()

    run_in_virtual_time(work())


def test_a_table_s_time_wins_and_a_pinned_model_stays() -> None:
    async def work() -> None:
        host = QuickHost()
        pool = pool_over(host, a=ModelTable(idle_ttl=Duration(5)), b=ModelTable(pin=True))
        await use(pool, A)
        await use(pool, B)
        await asyncio.sleep(6)
        assert host.resident == {B}
        await asyncio.sleep(100 * TTL_S)
        assert host.resident == {B}
        pool.unpin(B)
        await use(pool, B)
        await asyncio.sleep(TTL_S + 1)
        assert host.resident == set()
        pool.close()

    run_in_virtual_time(work())


def test_one_that_was_unloaded_by_hand_is_not_unloaded_again_when_its_time_is_up() -> None:
    async def work() -> None:
        host = QuickHost()
        pool = pool_over(host)
        await use(pool, A)
        pool.unload_when_idle(A)
        await asyncio.sleep(TTL_S / 2)
        assert host.resident == set()
        await use(pool, A)
        await asyncio.sleep(TTL_S / 2 + 1)
        assert host.resident == {A}, "the first timer is not the second's"
        pool.close()

    run_in_virtual_time(work())
