"""The engine port: whatever hosts the token side, the text side sees this. Spoken through the port alone."""

import asyncio
from collections.abc import Awaitable, Callable
from threading import get_ident
from typing import TypeAlias

import pytest

from adapters.fake.options import EOS_ID
from adapters.fake.tokenizer import FakeTokenizer
from application.events import ModelLoaded, ModelUnloaded, PrefillChunkComputed, RequestAdmitted, StepCompleted
from application.ports.engine import Ended, Engine, StepBatch, Tokens
from domain.errors import ModelLoadFailed, ModelNotFound, ServerUnavailable
from domain.ids import ModelId, RequestId
from domain.models.model_card import LoadOptions
from domain.prefix.explanation import StopReason
from domain.request.request import FinishReason, choice_id
from domain.request.sampling import SamplingParams
from domain.request.stream import Admitted, PrefillProgress
from tests.support.engines.engine_client import (
    BROKEN,
    ENGINES,
    FAILING,
    GATED,
    MAX_BATCH,
    MODEL,
    PROMPT_GATE,
    STUCK_AFTER_S,
    EngineClient,
    source,
    with_engine,
)
from tests.support.patience import PATIENCE_S

Run: TypeAlias = Callable[..., None]
LONG, ENDLESS = "a long prompt " * 200, 20_000


@pytest.fixture(params=ENGINES.values(), ids=ENGINES)
def make(request: pytest.FixtureRequest) -> Callable[[], Engine]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def run(make: Callable[[], Engine]) -> Run:
    def run(work: Callable[[EngineClient], Awaitable[None]], *models: ModelId) -> None:
        with_engine(make, work, *models)

    return run


def test_a_choice_is_admitted_prefilled_reported_and_ended_in_this_order(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        client.submit("a", "x" * 150, num_tokens=5)
        end = await client.end("a")
        kinds = [type(item) for item in client.items("a")]
        assert kinds == [Admitted, *[PrefillProgress] * 5, *[Tokens] * 5, Ended]
        done = [item.num_done for item in client.items("a") if isinstance(item, PrefillProgress)]
        assert done == [32, 64, 96, 128, 150]
        assert (end.reason, end.usage.prompt_tokens, end.usage.completion_tokens) == (FinishReason.LENGTH, 150, 5)
        admitted = client.items("a")[0]
        assert isinstance(admitted, Admitted)
        assert admitted.explanation.num_prompt == 150

    run(work)


def test_what_is_computed_is_reported_before_it_begins(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        client.submit("a", num_tokens=ENDLESS)
        await client.until_told("a", Tokens)
        client.submit("b", "x" * 150, num_choices=2)
        await client.end("b", 1)
        client.engine.cancel(RequestId("a"))
        await client.end("a")
        computing = set[str]()
        for batch in client.batches:
            for id, choice, item in batch.items:
                if isinstance(item, PrefillProgress | Tokens):
                    assert choice_id(id, choice) in computing, (id, choice, item)
            computing = computing if batch.computing is None else set(batch.computing)
        reported = [set(batch.computing) for batch in client.batches if batch.computing is not None]
        b, other = choice_id(RequestId("b"), 0), choice_id(RequestId("b"), 1)
        assert {b} in reported, "a prompt is computed alone"
        assert {"a", b, other} in reported

    run(work)


def test_an_end_token_is_counted_and_marked(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        bias = SamplingParams(temperature=0, logit_bias=((EOS_ID, 100.0),))
        ends = FakeTokenizer().eos_token_ids
        client.submit("a", sampling=bias, eos_token_ids=ends, ignore_eos=False, min_tokens=3, num_tokens=9)
        end = await client.end("a")
        told = [item for item in client.items("a") if isinstance(item, Tokens)]
        assert (end.reason, end.usage.completion_tokens) == (FinishReason.STOP, 4)
        assert [item.has_eos for item in told] == [False, False, False, True]
        assert told[-1].token_ids == (EOS_ID,)

    run(work)


def test_a_stop_token_ends_an_answer_that_ignores_the_end(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        bias = SamplingParams(temperature=0, logit_bias=((ord("x"), 100.0),))
        stops = frozenset({ord("x")})
        client.submit("a", sampling=bias, stop_token_ids=stops, min_tokens=3, num_tokens=9)
        end = await client.end("a")
        told = [token_id for item in client.items("a") if isinstance(item, Tokens) for token_id in item.token_ids]
        assert (end.reason, end.usage.completion_tokens) == (FinishReason.STOP, 4)
        assert [token_id in stops for token_id in told] == [False, False, False, True]

    run(work)


def test_only_allowed_tokens_are_chosen(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        allowed = frozenset(b"ab")
        client.submit("a", sampling=SamplingParams(temperature=1, allowed_token_ids=allowed), num_tokens=20)
        end = await client.end("a")
        told = [token_id for item in client.items("a") if isinstance(item, Tokens) for token_id in item.token_ids]
        assert (end.reason, len(told), set(told)) == (FinishReason.LENGTH, 20, allowed)
        ends = FakeTokenizer().eos_token_ids
        none = SamplingParams(temperature=0, allowed_token_ids=ends)
        client.submit("b", sampling=none, eos_token_ids=ends, ignore_eos=False, min_tokens=3, num_tokens=9)
        end = await client.end("b")
        assert end.reason is FinishReason.STOP

    run(work)


@pytest.mark.parametrize("phase", ["submitted", "queued", "prefilling", "decoding"])
def test_a_choice_is_cancelled_in_every_phase(run: Run, phase: str) -> None:
    async def work(client: EngineClient) -> None:
        others = [f"other {number}" for number in range(MAX_BATCH if phase == "queued" else 0)]
        for other in others:
            client.submit(other, num_tokens=ENDLESS)
            await client.until_told(other, Tokens)
        client.submit("a", LONG, num_tokens=ENDLESS)
        if phase in ("prefilling", "decoding"):
            await client.until_told("a", PrefillProgress if phase == "prefilling" else Tokens)
        client.engine.cancel(RequestId("a"))
        client.engine.cancel(RequestId("a"))
        end = await client.end("a")
        assert end.reason is FinishReason.CANCELLED
        for other in others:
            client.engine.cancel(RequestId(other))
            await client.end(other)
        await client.until(lambda: client.num_left_queue == 1 + len(others), "their places")
        status = client.engine.status()
        assert (status.num_waiting, status.num_running) == (0, 0)

    run(work)


def test_a_stop_string_ends_a_choice_with_the_tokens_that_count(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        client.submit("a", num_tokens=ENDLESS, num_choices=2)
        await client.until(lambda: len(client.items("a")) > 12, "some tokens")
        client.engine.cancel(RequestId("a"), 0, reason=FinishReason.STOP, num_tokens=3)
        end = await client.end("a")
        assert (end.reason, end.usage.completion_tokens) == (FinishReason.STOP, 3)
        assert not any(isinstance(item, Ended) for item in client.items("a", 1))
        client.engine.cancel(RequestId("a"))
        assert (await client.end("a", 1)).reason is FinishReason.CANCELLED

    run(work)


def test_what_is_cancelled_and_unknown_is_ignored(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        client.engine.cancel(RequestId("nobody"))
        client.submit("a", num_choices=2)
        client.engine.cancel(RequestId("a"), 7)
        assert len(await client.tokens("a")) == len(await client.tokens("a", 1)) == 4
        client.engine.cancel(RequestId("a"))

    run(work)


@pytest.mark.parametrize("num_choices", [2, MAX_BATCH, 2 * MAX_BATCH + 1])
def test_choices_draw_as_requests_of_their_own_would_and_their_prompt_is_computed_once(
    run: Run, num_choices: int
) -> None:
    drawing, prompt = SamplingParams(temperature=1.0), "the prompt of several choices " * 8

    async def work(client: EngineClient) -> None:
        client.submit("a", prompt, num_tokens=8, sampling=drawing, seed=5, num_choices=num_choices)
        answers = [await client.tokens("a", choice) for choice in range(num_choices)]
        computed = {choice: 0 for choice in range(num_choices)}
        for event in client.events:
            if isinstance(event, PrefillChunkComputed):
                choice = next(at for at in computed if choice_id(RequestId("a"), at) == event.id)
                computed[choice] += event.end - event.start
        assert computed[0] == len(prompt)
        assert all(computed[choice] <= 32 for choice in range(1, num_choices))
        for choice in range(num_choices):
            client.submit(f"alone {choice}", prompt, num_tokens=8, sampling=drawing, seed=5 + choice, cache_salt="own")
        assert answers == [await client.tokens(f"alone {choice}") for choice in range(num_choices)]
        assert len({tuple(answer) for answer in answers}) == num_choices
        for choice in range(num_choices):
            (admitted,) = [item for item in client.items("a", choice) if isinstance(item, Admitted)]
            end = client.items("a", choice)[-1]
            assert isinstance(end, Ended)
            assert end.usage.computed_tokens == computed[choice] == admitted.explanation.num_computed
        admitted_ids = [event.id for event in client.events if isinstance(event, RequestAdmitted)]
        assert set(admitted_ids) >= {choice_id(RequestId("a"), choice) for choice in range(num_choices)}

    run(work)


def test_the_others_go_on_when_the_first_choice_is_cancelled_before_they_have_a_state(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        client.submit("a", LONG, num_choices=2, model=GATED)
        await client.until_told("a", PrefillProgress)
        client.engine.cancel(RequestId("a"), 0)
        await client.engine.cache.stats()  # asked behind it, so that it has been taken in
        PROMPT_GATE.open()
        assert (await client.end("a")).reason is FinishReason.CANCELLED
        assert len(await client.tokens("a", 1)) == 4

    PROMPT_GATE.close()
    run(work, GATED)


def test_batches_come_on_the_event_loop(make: Callable[[], Engine]) -> None:
    threads = set[int]()

    class Placed(EngineClient):
        def receive(self, batch: StepBatch) -> None:
            threads.add(get_ident())
            super().receive(batch)

    async def run() -> None:
        client = Placed(make())
        client.engine.start(client.receive)
        await client.engine.load(source(MODEL), LoadOptions())
        client.submit("a")
        await client.end("a")
        assert await client.engine.stop(PATIENCE_S)

    asyncio.run(run())
    assert threads == {get_ident()}


def test_one_failing_request_harms_no_other(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        for id in "abc":
            client.submit(id, id * 50, num_tokens=8, model=FAILING)
        ends = [await client.end(id) for id in "abc"]
        assert [end.error is not None for end in ends] == [False, True, False]
        assert ends[1].error is not None
        assert (ends[1].error.code, ends[1].error.message, ends[1].reason) == ("compute_failed", "planted", None)
        assert ends[1].usage.completion_tokens == 2
        assert len(await client.tokens("a")) == len(await client.tokens("c")) == 8

    run(work, FAILING)


def test_a_model_that_cannot_be_loaded_says_why_and_the_engine_goes_on(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        with pytest.raises(ModelLoadFailed, match="cut short"):
            await client.engine.load(source(BROKEN), LoadOptions())
        client.submit("a")
        assert len(await client.tokens("a")) == 4
        client.submit("b", model=ModelId("unknown"))
        error = (await client.end("b")).error
        assert error is not None
        assert isinstance(error.to_error(), ServerUnavailable)

    run(work)


def test_loading_and_unloading_are_reported_before_they_are_answered(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        again = await client.engine.load(source(MODEL), LoadOptions())
        assert (again.description.id, again.reuse_note) == (MODEL, "")
        assert [event.id for event in client.events if isinstance(event, ModelLoaded)] == [MODEL]
        assert client.engine.status().memory
        client.submit("a", num_tokens=ENDLESS)
        await client.until_told("a", Tokens)
        await client.engine.unload(MODEL)
        error = (await client.end("a")).error
        assert error is not None
        assert isinstance(error.to_error(), ServerUnavailable)
        assert [event.id for event in client.events if isinstance(event, ModelUnloaded)] == [MODEL]
        await client.engine.unload(MODEL)

    run(work)


def test_batches_come_in_order_one_a_step(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        for number in range(6):
            client.submit(str(number), "x" * (20 + 30 * number), num_tokens=5)
        for number in range(6):
            await client.end(str(number))
        times = [batch.at_ns for batch in client.batches]
        assert times == sorted(times)
        assert all(sum(isinstance(event, StepCompleted) for event in batch.events) <= 1 for batch in client.batches)
        assert client.num_left_queue == 6

    run(work)


def test_the_cache_explains_stores_counts_and_clears(run: Run) -> None:
    prompt = FakeTokenizer().encode("what is asked for twice " * 10)
    num_prompt = len(prompt.token_ids)

    async def work(client: EngineClient) -> None:
        cache = client.engine.cache
        told = await cache.explain(MODEL, prompt, "")
        assert (told.stopped_at, told.reason) == (0, StopReason.NEVER_SEEN)
        client.submit("a", "what is asked for twice " * 10)
        await client.end("a")
        assert await cache.settle(PATIENCE_S)
        assert await cache.num_stored(MODEL, prompt, "") == num_prompt - 1
        assert await cache.num_stored(MODEL, prompt, "other") == 0
        assert (await cache.explain(MODEL, prompt, "")).stopped_at == num_prompt - 1
        stats = await cache.stats()
        assert stats.hot.num_blocks > 0
        assert stats.store is not None
        assert [(model.model, model.num_namespaces) for model in stats.store.models] == [(MODEL, 1)]
        assert stats.queue is not None
        assert stats.queue.persisted > 0
        evicted = await cache.clear_hot()
        assert (evicted.num_hot > 0, evicted.hot_bytes > 0, evicted.num_stored) == (True, True, 0)
        assert (await cache.stats()).hot.used_bytes == 0
        assert (await cache.explain(MODEL, prompt, "")).stopped_at == num_prompt - 1
        client.submit("b", "another prompt of some length " * 10)
        await client.end("b")
        assert (await cache.clear(None, "other")).num_stored == 0
        cleared = await cache.clear(MODEL, None)
        assert cleared.num_hot > 0
        assert cleared.num_stored > 0
        assert (await cache.explain(MODEL, prompt, "")).stopped_at == 0
        with pytest.raises(ModelNotFound):
            await cache.explain(ModelId("unknown"), prompt, "")

    run(work)


def test_an_idle_engine_shows_that_it_lives(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        before = client.engine.status()
        assert before.is_alive
        assert not before.is_busy
        assert before.stuck_after_s == STUCK_AFTER_S, "whoever watches it hears that from what computes"
        async with asyncio.timeout(PATIENCE_S):
            while client.engine.status().last_progress_ns == before.last_progress_ns:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.05)

    run(work)


def test_stopping_ends_every_choice_once_and_refuses_what_comes_later(make: Callable[[], Engine]) -> None:
    async def work() -> None:
        client = EngineClient(make())
        with pytest.raises(ServerUnavailable):
            await client.engine.load(source(MODEL), LoadOptions())  # it has not begun
        client.engine.start(client.receive)
        await client.engine.load(source(MODEL), LoadOptions())
        for number in range(2 * MAX_BATCH):
            client.submit(str(number), LONG, num_tokens=ENDLESS, num_choices=2)
        await client.until_told("0", Tokens)
        assert await client.engine.stop(PATIENCE_S)
        assert await client.engine.stop(PATIENCE_S)
        for number in range(2 * MAX_BATCH):
            for choice in range(2):
                (end,) = [item for item in client.items(str(number), choice) if isinstance(item, Ended)]
                assert end.error is not None
                assert isinstance(end.error.to_error(), ServerUnavailable)
        assert client.num_left_queue == 4 * MAX_BATCH
        assert not client.engine.status().is_alive
        assert [event.id for event in client.events if isinstance(event, ModelUnloaded)] == [MODEL]
        assert any(type(event).__name__ == "RecordsPersisted" for event in client.events)
        with pytest.raises(ServerUnavailable):
            client.submit("late")
        with pytest.raises(ServerUnavailable):
            await client.engine.load(source(MODEL), LoadOptions())
        with pytest.raises(ServerUnavailable):
            await client.engine.unload(MODEL)
        client.engine.cancel(RequestId("late"))

    asyncio.run(work())
