"""An engine that is lost: the work that continues, the pauses between attempts, and their bounds."""

import asyncio

import pytest

from application.events import EngineRestarted
from application.ports.engine import Ended, Submission, Tokens
from application.services.text_side.answers.open_requests import RETRY_AFTER_S
from domain.errors import ModelLoadFailed, ServerUnavailable
from domain.health.engine_health import ENDED, EngineHealth, engine_health
from domain.ids import ModelId, RequestId
from domain.models.model_card import LoadOptions
from domain.request.request import FinishReason
from tests.support.engines.engine_client import MODEL, source
from tests.support.engines.process.mortal_world import ENDLESS, Mortal, World, in_world
from tests.support.patience import PATIENCE_S

OTHER = ModelId("other")


def test_lost_again_and_again_it_is_started_ever_later_and_says_so() -> None:
    async def work(world: World) -> None:
        for _ in range(4):
            await world.lose()
            await world.living()
        assert world.delays == [1, 2, 4]
        assert len([event for event in world.client.events if isinstance(event, EngineRestarted)]) == 4
        world.may_sleep.clear()
        await world.lose()
        status = world.engine.status()
        assert (status.is_alive, status.fault) == (False, "the engine is being restarted: planted")
        with pytest.raises(ServerUnavailable, match="planted"):
            await world.engine.cache.stats()

    in_world(work)


def test_while_another_one_comes_it_is_stuck_only_when_that_one_does_not_move() -> None:
    async def work(world: World) -> None:
        loading, comes, begins = asyncio.Event(), asyncio.Event(), asyncio.Queue[None]()

        async def loads(_id: ModelId) -> None:
            loading.set()
            await comes.wait()

        async def hang() -> None:
            begins.put_nowait(None)
            await comes.wait()

        def health() -> EngineHealth:
            return engine_health(world.engine.status().heartbeat, world.clock.now_ns(), 300)

        world.loads = loads
        world.clock.advance(1_000)
        await world.lose()
        world.client.submit("a", num_tokens=ENDLESS)
        await loading.wait()
        assert (health().num_waiting, health().is_stuck) == (1, False)
        for _ in range(3):
            world.clock.advance(200)
            world.lives[-1].loads_since(world.clock.now_ns())
            assert not health().is_stuck, "a large model"
        world.clock.advance(301)
        assert health().stuck_in == "load"
        world.begins = hang
        for _ in range(2):
            await world.lose()
            await begins.get()
        ended = health()
        world.clock.advance(301)
        world.lives[-1].loads_since(world.clock.now_ns())
        assert (ended.stuck_in, health().stuck_since_ns) == (ENDED, ended.stuck_since_ns), "one wedge, reported once"
        doing = world.engine.status().activity
        assert doing is not None, "what the watch sees of the one that comes"
        assert (doing.kind, world.clock.now_ns() - doing.since_ns < 1_000) == ("load", True)
        comes.set()
        await world.living()

    in_world(work)


def test_one_that_hangs_before_it_has_taken_over_counts_as_one_that_never_lived() -> None:
    async def work(world: World) -> None:
        begins, comes = asyncio.Queue[None](), asyncio.Event()

        async def hang() -> None:
            begins.put_nowait(None)
            await comes.wait()

        world.begins = hang
        for _ in range(2):
            await world.lose()
            await begins.get()
        assert not world.engine.status().is_alive
        world.clock.advance(301)
        hanging = world.lives[-1]
        world.engine.abandon()
        await begins.get()
        assert await hanging.stop(PATIENCE_S)
        assert world.delays == [1, 2], "five minutes of hanging are no calm life"
        comes.set()
        await world.living()

    in_world(work)


def test_lost_for_the_first_time_it_takes_requests_that_wait_for_the_next() -> None:
    async def work(world: World) -> None:
        loading = asyncio.Event()

        async def wait(_id: ModelId) -> None:
            await loading.wait()

        world.loads = wait
        await world.lose()
        assert world.engine.status().is_alive
        world.client.submit("a")
        world.client.submit("b")
        world.engine.cancel(RequestId("b"))
        assert (await world.client.end("b")).reason is FinishReason.CANCELLED
        assert world.engine.status().num_waiting == 1
        loading.set()
        assert len(await world.client.tokens("a")) == 4
        assert world.client.num_left_queue == 2

    in_world(work)


def test_while_no_engine_can_be_started_open_work_ends_after_a_while_and_new_work_is_refused() -> None:
    async def work(world: World) -> None:
        hangs, comes = asyncio.Queue[None](), asyncio.Event()

        async def hang() -> None:
            hangs.put_nowait(None)
            await comes.wait()

        await world.streaming("a")
        world.begins = hang
        await world.lose()
        await hangs.get()
        world.client.submit("b")
        world.may_sleep.clear()
        await world.lose()
        loading = asyncio.ensure_future(world.engine.load(source(OTHER), LoadOptions()))
        with pytest.raises(ServerUnavailable) as refused:
            world.client.submit("late")
        assert refused.value.retry_after_s == RETRY_AFTER_S
        assert world.is_open("a")
        world.gives_up.set()
        for id in "ab":
            error = await world.failure(id)
            assert error.message == "no engine could be started for 60 s: planted"
        with pytest.raises(ServerUnavailable, match="planted"):
            await loading
        comes.set()
        world.may_sleep.set()
        await world.living()
        world.client.submit("c")
        assert len(await world.client.tokens("c")) == 4

    in_world(work)


def test_an_engine_that_loads_its_models_has_the_time_that_takes_and_no_second_try() -> None:
    async def work(world: World) -> None:
        loading, comes = asyncio.Queue[None](), asyncio.Event()

        async def loads(_id: ModelId) -> None:
            loading.put_nowait(None)
            await comes.wait()

        await world.engine.load(source(OTHER), LoadOptions())
        await world.streaming("a")
        world.loads = loads
        await world.lose()
        await loading.get()
        world.gives_up.set()
        await asyncio.sleep(0)
        assert world.is_open("a")
        await world.lose()
        error = await world.failure("a")
        assert error.message == "no engine could be started for 60 s: planted"
        comes.set()
        await world.living()

    in_world(work)


def test_where_the_first_engine_cannot_be_made_nothing_waits_for_a_second() -> None:
    async def work() -> None:
        world = World()

        asked, ended = asyncio.Event(), asyncio.Event()

        async def never() -> None:
            await asyncio.Event().wait()

        async def loads(_id: ModelId) -> None:
            asked.set()
            await ended.wait()

        world.begins, world.loads = never, loads
        world.engine.start(world.client.receive)
        loading = asyncio.ensure_future(world.engine.load(source(OTHER), LoadOptions()))
        await asked.wait()
        first = world.lives[-1]
        first.lost("no device")
        assert await first.stop(PATIENCE_S)
        ended.set()
        with pytest.raises(ServerUnavailable):
            await loading
        assert await world.engine.stop(PATIENCE_S)

    asyncio.run(work())


def test_one_that_hangs_is_abandoned_and_what_was_open_goes_on() -> None:
    async def work(world: World) -> None:
        world.client.submit("a", num_tokens=40)
        await world.client.until_told("a", Tokens)
        hanging = world.lives[-1]
        world.engine.abandon()
        await world.client.until(lambda: len(world.lives) == 2, "another engine")
        assert await hanging.stop(PATIENCE_S)
        assert len(await world.client.tokens("a")) == 40
        assert world.lives[-1] is not hanging

    in_world(work)


def test_a_stop_string_found_as_the_engine_is_lost_ends_with_the_tokens_that_count() -> None:
    async def work(world: World) -> None:
        world.client.submit("a", num_tokens=ENDLESS)
        await world.client.until(lambda: len(world.client.items("a")) > 9, "some tokens")
        life = world.lives[-1]
        world.engine.cancel(RequestId("a"), 0, reason=FinishReason.STOP, num_tokens=3)
        life.lost("planted")
        end = await world.client.end("a")
        assert (end.reason, end.usage.completion_tokens) == (FinishReason.STOP, 3)
        assert await life.stop(PATIENCE_S)
        await world.living()

    in_world(work)


def test_a_model_that_cannot_be_loaded_again_fails_its_requests_and_is_tried_with_the_next() -> None:
    async def work(world: World) -> None:
        await world.streaming("a")

        async def fail(_id: ModelId) -> None:
            raise ModelLoadFailed("its folder is gone")

        usual, world.loads = world.loads, fail
        await world.lose()
        for id in ("a", "b"):
            if id == "b":
                world.client.submit("b")
            error = await world.failure(id)
            assert (error.code, error.message) == ("model_load_failed", "its folder is gone")
            await world.living()
        world.loads = usual
        world.client.submit("c")
        assert len(await world.client.tokens("c")) == 4

    in_world(work)


def test_stopped_while_there_is_no_engine_it_ends_everything() -> None:
    async def work(world: World) -> None:
        await world.streaming("a")
        await world.lose()
        await world.living()
        world.may_sleep.clear()
        world.client.submit("b", num_tokens=ENDLESS)
        await world.lose()
        loading = asyncio.ensure_future(world.engine.load(source(OTHER), LoadOptions()))
        await asyncio.sleep(0)
        assert await world.engine.stop(PATIENCE_S)
        with pytest.raises(ServerUnavailable):
            await loading
        for id in "ab":
            assert (await world.client.end(id)).error is not None
        with pytest.raises(ServerUnavailable):
            world.client.submit("late")

    in_world(work)


def test_a_model_that_is_unloaded_while_another_one_is_loaded_again_is_left_out() -> None:
    async def work(world: World) -> None:
        await world.engine.load(source(OTHER), LoadOptions())
        loading, begun = asyncio.Event(), asyncio.Event()

        async def wait(id: ModelId) -> None:
            assert id == MODEL, "nobody wants the other one any more"
            begun.set()
            await loading.wait()

        world.loads = wait
        await world.lose()
        await begun.wait()
        await world.engine.unload(OTHER)
        loading.set()
        await world.living()

    in_world(work)


def test_an_engine_that_is_never_made_has_not_taken_over() -> None:
    async def work(world: World) -> None:
        started, may_begin = asyncio.Queue[None](), asyncio.Event()

        async def begin() -> None:
            started.put_nowait(None)
            await may_begin.wait()

        world.begins = begin
        await world.engine.unload(MODEL)
        for _ in range(2):
            await world.lose()
            await started.get()
        assert world.engine.status().fault
        assert not [event for event in world.client.events if isinstance(event, EngineRestarted)]
        may_begin.set()
        await world.living()
        (restarted,) = [event for event in world.client.events if isinstance(event, EngineRestarted)]
        assert restarted.num_tries == 2

    in_world(work)


def test_after_an_upgrade_no_other_engine_is_started_and_all_work_ends() -> None:
    async def work(world: World) -> None:
        await world.streaming("a")
        world.lives[-1].is_outdated = True
        await world.lose()
        (end,) = [item for batch in world.client.batches for *_, item in batch.items if isinstance(item, Ended)]
        assert end.error is not None, "before `lose` returns"
        assert (end.error.code, end.error.message) == ("server_unavailable", "planted")
        assert (world.outdated, len(world.lives)) == (["planted"], 1)
        with pytest.raises(ServerUnavailable, match="planted"):
            world.client.submit("b")

    in_world(work)


def test_a_request_that_cannot_be_sent_is_forgotten() -> None:
    async def work(world: World) -> None:
        def refuse(_: object) -> None:
            raise OverflowError("more than 64 bits")

        living = world.lives[-1]
        send, living.submit = living.submit, refuse
        with pytest.raises(OverflowError):
            world.client.submit("a")
        assert not list(world.engine._work)  # type: ignore[attr-defined]
        living.submit = send
        world.client.submit("b")
        await world.client.end("b")

    in_world(work)


def test_work_that_cannot_be_sent_to_the_next_engine_fails_alone() -> None:
    async def work(world: World) -> None:
        await world.streaming("a")
        submit = Mortal.submit

        def refuse_a(life: Mortal, submission: Submission) -> None:
            if submission.id == "a":
                raise OverflowError("more than 64 bits")
            submit(life, submission)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Mortal, "submit", refuse_a)
            await world.lose()
            error = await world.failure("a")
            assert "more than 64 bits" in error.message
        world.client.submit("b", num_tokens=40)
        assert len(await world.client.tokens("b")) == 40

    in_world(work)
