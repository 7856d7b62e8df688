"""The engine port's contract on images: the file crosses, and what the model sees decides tokens, reuse and errors."""

from collections.abc import Awaitable, Callable
from itertools import chain
from typing import TypeAlias

import pytest

from adapters.fake.vision import toy_image
from application.events import ImageSeen, ImagesMatched
from application.ports.engine import Engine
from domain.errors import InvalidRequest
from domain.prefix.explanation import Explanation
from domain.request.stream import Admitted, PromptLogprobs
from tests.support.engines.engine_client import ENGINES, EngineClient, with_engine

Run: TypeAlias = Callable[[Callable[[EngineClient], Awaitable[None]]], None]
CAT, DOG, LARGE = toy_image(5, 8, "cat"), toy_image(5, 8, "dog"), toy_image(12, 12, "owl")
LEAD = "a system prompt that all of them share: "


@pytest.fixture(params=ENGINES.values(), ids=ENGINES)
def run(request: pytest.FixtureRequest) -> Run:
    make: Callable[[], Engine] = request.param
    return lambda work: with_engine(make, work)


def explanation(client: EngineClient, id: str, choice: int = 0) -> Explanation:
    (told,) = [item.explanation for item in client.items(id, choice) if isinstance(item, Admitted)]
    return told


def events_of(client: EngineClient, id: str, kind: type) -> list[object]:
    return [event for event in client.events if isinstance(event, kind) and getattr(event, "id", None) == id]


def test_what_is_in_an_image_decides_the_answer(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        for id, image in (("cat", CAT), ("dog", DOG), ("cat again", toy_image(5, 8, "cat"))):
            client.submit(id, (LEAD, image, " what is it?"), 8)
            await client.end(id)
        cat, dog, again = [await client.tokens(id) for id in ("cat", "dog", "cat again")]
        assert cat == again != dog

    run(work)


def test_images_are_counted_when_the_request_is_admitted(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        for id in ("first", "again"):
            client.submit(id, (LEAD, CAT, " and ", LARGE, " what?"), 4)
            await client.end(id)
        (first,), (again,) = (events_of(client, id, ImagesMatched) for id in ("first", "again"))
        assert isinstance(first, ImagesMatched)
        assert isinstance(again, ImagesMatched)
        assert (first.num_images, first.num_tokens, first.num_reused) == (2, 45 + 156, 0)
        assert (again.num_images, again.num_tokens, again.num_reused) == (2, 45 + 156, 45 + 156)
        assert events_of(client, "again", ImageSeen) == []
        assert client.desk.num_wanted == 2

    run(work)


def test_all_choices_share_one_pass(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        client.submit("short", (toy_image(2, 3, "cat"), "?"), 6, num_choices=3)
        ends = [await client.tokens("short", choice) for choice in range(3)]
        assert len(ends) == 3
        assert sum(isinstance(event, ImageSeen) for event in client.events) == 1

    run(work)


def test_another_tenant_learns_nothing_of_an_image(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        for id, salt in (("all", ""), ("mine", "mine"), ("mine again", "mine")):
            client.submit(id, (CAT, id), 4, cache_salt=salt)
            await client.end(id)
        assert sum(isinstance(event, ImageSeen) for event in client.events) == 2

    run(work)


def test_an_image_that_cannot_be_prepared_fails_its_request_only(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        client.submit("broken", (LEAD, toy_image(2, 3, "broken", field="messages[0].content[1]"), "?"), 4)
        client.submit("sound", (LEAD, CAT, "?"), 4)
        end = await client.end("broken")
        assert end.error is not None
        error = end.error.to_error()
        assert isinstance(error, InvalidRequest)
        assert (error.param, error.message) == (
            "messages[0].content[1]",
            "messages[0].content[1] is broken: send another file",
        )
        assert await client.tokens("sound")

    run(work)


def test_tokens_of_images_have_no_log_probability(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        client.submit("a", ("see ", CAT, " then"), 2, num_prompt_logprobs=1)
        await client.end("a")
        told = [item.scores for item in client.items("a") if isinstance(item, PromptLogprobs)]
        found = list(chain.from_iterable(told))
        assert [at for at, score in enumerate(found) if score is None] == [0, *range(4, 49)]
        assert len(found) == 54

    run(work)
