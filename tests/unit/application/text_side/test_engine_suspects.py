"""The loss of an engine: the load or the requests that are blamed, their end, and the requests that continue."""

import asyncio

import pytest

from application.events import RequestPreempted
from application.services.text_side.models.load_failures import REMEMBERED_S
from application.services.text_side.supervision.open_work import MAX_SUSPICIONS
from domain.errors import EngineLost, ModelLoadFailed, ServerUnavailable
from domain.ids import ModelId
from domain.models.model_card import LoadOptions
from tests.support.engines.engine_client import source
from tests.support.engines.process.mortal_world import World, in_world

OTHER = ModelId("other")


def test_what_is_computed_again_without_getting_further_ends_at_the_second_loss() -> None:
    async def work(world: World) -> None:
        await world.streaming("a")
        world.is_deaf = True
        await world.lose()
        assert [event.id for event in world.client.events if isinstance(event, RequestPreempted)] == ["a"]
        await world.living()
        world.lives[-1].computes("a")
        await world.lose()
        error = await world.failure("a")
        assert isinstance(error.to_error(), EngineLost)
        assert error.message == "the engine was lost 2 times over this request: planted"
        assert world.client.num_left_queue == 1

    in_world(work)


def test_only_what_was_computed_is_suspect_and_suspects_come_back_one_by_one() -> None:
    async def work(world: World) -> None:
        await world.streaming("a", "b", "c")
        world.client.submit("queued", num_tokens=4)
        await world.client.until(lambda: world.engine.status().num_waiting == 1, "a full batch")
        world.is_deaf = True
        world.lives[-1].computes("a", "b")
        await world.lose()
        await world.living()
        life = world.lives[-1]
        assert life.submitted == ["a", "c"], "one suspect, and what is none; newcomers wait while a suspect does"
        assert world.engine.status().num_waiting >= 2
        life.gets_on("a", 7)
        assert life.submitted == ["a", "c", "b", "queued"]
        life.computes("b", "c")
        await world.lose()
        error = await world.failure("b")
        assert error.code == "engine_lost"
        await world.living()
        life = world.lives[-1]
        assert life.submitted == ["c", "a", "queued"], "a got on and is no suspect any more; c is one now"
        assert world.is_open("a", "c")

    in_world(work)


def test_what_is_computed_at_loss_after_loss_ends_however_far_it_gets() -> None:
    async def work(world: World) -> None:
        await world.streaming("a")
        world.is_deaf = True
        world.lives[-1].computes("a")
        for number in range(MAX_SUSPICIONS - 1):
            await world.lose()
            await world.living()
            world.lives[-1].gets_on("a", number)
            world.lives[-1].computes("a")
            assert world.is_open("a")
        await world.lose()
        error = await world.failure("a")
        assert error.code == "engine_lost"

    in_world(work)


def test_a_load_that_ends_the_engine_is_that_models_failure_and_remembered() -> None:
    async def work(world: World) -> None:
        num_loads = 0

        async def die(id: ModelId) -> None:
            nonlocal num_loads
            if id == OTHER:
                num_loads += 1
                await world.lose()
                raise ServerUnavailable("planted")

        await world.streaming("a")
        world.loads = die
        for _ in range(3):
            with pytest.raises(ModelLoadFailed, match="loading other ended the engine: planted"):
                await world.engine.load(source(OTHER), LoadOptions())
        await world.living()
        with pytest.raises(ModelLoadFailed, match="loading other ended the engine: planted"):
            await asyncio.to_thread(world.engine.check, source(OTHER), LoadOptions())
        assert (num_loads, len(world.lives)) == (1, 2)
        world.clock.advance(REMEMBERED_S + 1)
        with pytest.raises(ModelLoadFailed):
            await world.engine.load(source(OTHER), LoadOptions())
        await world.living()
        assert (num_loads, len(world.lives)) == (2, 3)
        assert world.is_open("a"), "no stream was suspect"

    in_world(work)


def test_a_model_whose_second_load_ends_the_engine_ends_its_own_requests_alone() -> None:
    async def work(world: World) -> None:
        async def die(id: ModelId) -> None:
            if id == OTHER:
                await world.lose()
                raise ServerUnavailable("planted")

        await world.engine.load(source(OTHER), LoadOptions())
        await world.streaming("a")
        await world.streaming("b", model=OTHER)
        world.loads = die
        await world.lose()
        error = await world.failure("b")
        assert error.code == "model_load_failed"
        await world.living()
        assert len(world.lives) == 4, "it was served, and has two tries"
        assert world.is_open("a")

    in_world(work)
