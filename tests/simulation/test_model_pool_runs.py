"""Random clients of a model pool on a clock of its own: everybody is served or refused in time, nothing is left.

Clients ask, hold a lease for a while, leave while they wait; loads take time and fail. One seed, one run.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from random import Random

import pytest

from adapters.fake.engine import FakeModels
from adapters.fake.environment import FakeClock
from adapters.fake.options import ATTENTION
from adapters.fake.tokenizer import FakeTokenizers
from application.live_settings import LiveSettings
from application.ports.engine import EngineModel, EngineStatus
from application.ports.model_repository import ModelPreview
from application.services.text_side.models.model_pool import ModelPool
from application.settings import ModelSettings, ModelTable, Settings
from domain.duration import Duration
from domain.errors import ModelExceedsMemory, ModelLoadFailed, ModelsBusy
from domain.ids import ModelId
from domain.models.model_card import ContextLength, DecodeMode, LoadOptions, ModelDescription, ModelSource
from domain.models.residency import LoadRoom
from tests.simulation.virtual_time import run_in_virtual_time
from tests.support.effort import drawn
from tests.support.processes.lanes import InlineLane

ROOM_WAIT_S = 30.0
MAX_LOAD_S = 5.0
NUM_QUICK, NUM_ALL = 60, 60 + drawn(190)


class LoopClock(FakeClock):
    """The running loop's time, which jumps."""

    def now_ns(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e9)


class TimedHost:
    """An Engine that takes its time on the running loop, and checks what it is asked."""

    def __init__(self, random: Random, max_loaded: int, failure_rate: float) -> None:
        self._random = random
        self._max_loaded = max_loaded
        self._failure_rate = failure_rate
        self.resident: set[ModelId] = set()
        self.sizes: dict[ModelId, int] = {}
        self.room = LoadRoom()
        self.loads: list[ModelId] = []

    async def load(self, source: ModelSource, options: LoadOptions) -> EngineModel:
        assert source.id not in self.resident
        assert len(self.resident) < self._max_loaded, "more is loaded than may be"
        self.resident.add(source.id)
        idle_room = replace(self.room, busy_bytes=0)  # requests may have come since it was decided
        assert idle_room.fits_now(sum(self.sizes[id] for id in self.resident)), "more is loaded than fits"
        self.loads.append(source.id)
        fails = self._random.random() < self._failure_rate
        await asyncio.sleep(self._random.uniform(0, MAX_LOAD_S))
        if fails:
            self.resident.remove(source.id)
            raise ModelLoadFailed(f"{source.id} fails")
        return EngineModel(described(source.id, self.sizes[source.id]))

    async def unload(self, id: ModelId) -> None:
        await asyncio.sleep(self._random.uniform(0, MAX_LOAD_S))
        self.resident.remove(id)


def described(id: ModelId, weight_bytes: int) -> ModelDescription:
    return ModelDescription(
        id=id,
        model_type="fake",
        vocab_size=260,
        context=ContextLength(4096),
        eos_token_ids=frozenset(),
        dtype="uint64",
        weight_bytes=weight_bytes,
        layout=ATTENTION,
        decode_mode=DecodeMode.BATCHED,
    )


class PoolRun:
    """`counts`: how the clients' requests ended. `granted`: models in the order of their leases."""

    def __init__(self, seed: int, *, is_calm: bool = False) -> None:
        """`is_calm`: no client leaves, nothing fails."""
        random = self._random = Random(seed)
        self._ids = [ModelId(f"m{number}") for number in range(random.randint(2, 5))]
        self.num_models = len(self._ids)
        self.max_loaded = random.randint(1, len(self._ids) - 1) if not is_calm else 1
        self.host = TimedHost(random, self.max_loaded, 0.0 if is_calm else random.choice((0.0, 0.1)))
        self._leave_rate = 0.0 if is_calm else random.choice((0.0, 0.3))
        self.host.sizes = {id: 1 if is_calm else random.randint(1, 60) for id in self._ids}
        self.is_bounded = not is_calm and random.random() < 0.5
        if self.is_bounded:
            self.host.room = LoadRoom(100, fixed_bytes=random.randint(0, 50))
        ttl = Duration(random.randint(1, 9)) if not is_calm and random.random() < 0.3 else None
        settings = ModelSettings(default="m0", idle_ttl=ttl)
        workers = InlineLane()
        self.pool = ModelPool(
            repository=FakeModels(self._ids),
            tokenizers=FakeTokenizers(),
            engine=self.host,
            live=LiveSettings(Settings(model=settings)),
            clock=LoopClock(),
            workers=workers,
            check=lambda source, _options: ModelPreview(self.host.sizes[source.id]),
            room=lambda: self.host.room,
            max_loaded=self.max_loaded,
            room_wait_s=ROOM_WAIT_S,
        )
        self.counts: Counter[str] = Counter()
        self.granted: list[ModelId] = []

    async def run(self) -> None:
        clients = self._random.randint(2, 12)
        await asyncio.gather(*(self._client(self._random.randint(1, 8)) for _ in range(clients)))
        self.host.room = replace(self.host.room, busy_bytes=0)
        await asyncio.sleep(4 * MAX_LOAD_S)  # a load whose clients have all left ends by itself
        assert [self.pool.status(id).num_leases for id in self._ids] == [0] * len(self._ids)
        assert {served.source.id for served in self.pool.loaded()} == self.host.resident
        for id in self._ids:  # and everything can still be had, unless it has just failed
            with suppress(ModelLoadFailed):
                self.pool.release(await self.pool.acquire(id))

    async def _client(self, num_requests: int) -> None:
        for _ in range(num_requests):
            id = self._random.choice(self._ids)
            asked = asyncio.create_task(self._request(id))
            if self._random.random() < self._leave_rate:
                asyncio.get_running_loop().call_later(self._random.uniform(0, 20), asked.cancel)
            await asyncio.wait({asked})
            if asked.cancelled():
                self.counts["left"] += 1
            else:
                asked.result()
            await asyncio.sleep(self._random.choice((0.0, 0.0, self._random.uniform(0, 3))))

    async def _request(self, id: ModelId) -> None:
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        try:
            served = await self.pool.acquire(id)
        except (ModelsBusy, ModelLoadFailed) as error:
            self.counts[error.code] += 1
            if isinstance(error, ModelExceedsMemory):
                self._check_too_large(error, self.host.sizes[id], loop.time() - asked_s)
            return
        finally:
            # It may stand in line until the last moment, and then one is unloaded for it and it is loaded.
            assert loop.time() - asked_s <= ROOM_WAIT_S + 2 * MAX_LOAD_S + 0.01
        try:
            assert served.source.id == id
            self.granted.append(id)
            end_s = loop.time() + self._random.choice((0.0, 1.0, 4.0))
            while True:
                assert id in self.host.resident, "a leased model was unloaded"
                if loop.time() >= end_s:
                    break
                await asyncio.sleep(0.5)
                if self.is_bounded:  # requests take and give back; what is held never keeps a load from fitting at all
                    room = self.host.room
                    self.host.room = replace(room, busy_bytes=self._random.choice((0, 0, 10, 40)))
            self.counts["served"] += 1
        finally:
            self.pool.release(served)

    def _check_too_large(self, error: ModelExceedsMemory, num_bytes: int, waited_s: float) -> None:
        assert self.host.room.available_bytes(0) == error.available_bytes < num_bytes
        assert not waited_s, "nobody waits for what can never be"


def play(seed: int, *, is_calm: bool = False) -> PoolRun:
    run = PoolRun(seed, is_calm=is_calm)
    run_in_virtual_time(run.run())
    return run


@pytest.mark.parametrize("first", range(0, NUM_QUICK, 20))
def test_everybody_is_served_or_refused_and_nothing_is_left(first: int) -> None:
    for seed in range(first, first + 20):
        run = play(seed)
        assert run.counts["served"], seed
        assert len(run.host.loads) <= run.counts.total() + run.num_models, seed


@pytest.mark.slow
def test_many_runs_leave_nothing() -> None:
    for seed in range(NUM_QUICK, NUM_ALL):
        run = play(seed)
        assert len(run.host.loads) <= run.counts.total() + run.num_models, seed


@pytest.mark.parametrize("seed", range(20))
def test_a_model_is_loaded_once_for_all_that_use_it_in_a_row(seed: int) -> None:
    run = play(seed, is_calm=True)
    num_switches = len(list(groupby(run.granted)))
    # Room may be made for a request that is refused meanwhile; and the run's end asks for each model once more.
    assert len(run.host.loads) <= num_switches + run.counts["models_busy"] + run.num_models


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
        live=LiveSettings(Settings(model=ModelSettings(default="a", idle_ttl=Duration(TTL_S)), models=tables or {})),
        clock=LoopClock(),
        workers=InlineLane(),
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
