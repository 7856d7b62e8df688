"""The tokens of a prompt for routers: those that the request is then computed from, in every dialect that has them."""

from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.engine import FakeModels
from adapters.fake.options import FakeOptions
from adapters.fake.vision import ToyImages
from domain.client import Client
from tests.support.http.images import CAT, openai_part
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service, headers, keyed_service
from tests.support.processes.picture_images import Processors

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "The weather of a city.", "parameters": PARAMETERS}
SYSTEM, QUESTION = "You answer in one word.", "How is the weather in Rome?"
CHAT: dict[str, Any] = {
    "model": "default",
    "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}],
    "tools": [{"type": "function", "function": TOOL}],
    "max_tokens": 2,
}


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(eos_every=0)) as one:
        yield one


def asked(service: FakeService, path: str, body: dict[str, Any], **rest: Any) -> Any:
    answer = service.client.post(path, json=body, **rest)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_chat_with_tools_is_rendered_as_it_is_computed(service: FakeService) -> None:
    found = asked(service, "/v1/chat/completions/render", {**CHAT, "stream": True, "n": 3})
    answer = asked(service, "/v1/chat/completions", {**CHAT, "return_token_ids": True})
    assert found == {"token_ids": answer["prompt_token_ids"], "features": None}
    assert len(found["token_ids"]) == answer["usage"]["prompt_tokens"]
    bare = asked(service, "/v1/chat/completions/render", {**CHAT, "tools": None})
    assert len(bare["token_ids"]) < len(found["token_ids"])


def test_each_prompt_of_a_completion_is_rendered(service: FakeService) -> None:
    body = {"model": DEFAULT_MODEL, "prompt": ["one two", "three"], "max_tokens": 1}
    found = asked(service, "/v1/completions/render", body)
    answer = asked(service, "/v1/completions", {**body, "return_token_ids": True})
    assert [one["token_ids"] for one in found] == [one["prompt_token_ids"] for one in answer["choices"]]
    (ids,) = asked(service, "/v1/completions/render", {**body, "prompt": [104, 105]})
    assert ids["token_ids"] == [104, 105]


def test_a_response_is_rendered_with_its_instructions_tools_and_the_turns_before(service: FakeService) -> None:
    body: dict[str, Any] = {"instructions": SYSTEM, "input": QUESTION, "tools": [{"type": "function", **TOOL}]}
    found = asked(service, "/v1/responses/render", body)
    assert found == asked(service, "/v1/chat/completions/render", CHAT)
    answer = asked(service, "/v1/responses", {**body, "max_output_tokens": 2, "store": True})
    assert len(found["token_ids"]) == answer["usage"]["input_tokens"]
    later = {**body, "input": "And in Oslo?", "previous_response_id": answer["id"]}
    found = asked(service, "/v1/responses/render", later)
    assert len(found["token_ids"]) == asked(service, "/v1/responses", later)["usage"]["input_tokens"]


def test_nothing_is_computed_and_what_cannot_be_served_is_refused(service: FakeService) -> None:
    before = len(service.events.of("RequestQueued"))
    asked(service, "/v1/chat/completions/render", CHAT)
    assert len(service.events.of("RequestQueued")) == before
    unknown = service.client.post("/v1/chat/completions/render", json={**CHAT, "model": "gpt-9"})
    assert unknown.status_code == 404
    assert service.client.post("/v1/responses/render", json={"input": "x", "tools": 3}).status_code == 400
    long = {"model": DEFAULT_MODEL, "prompt": "x" * 40_000}
    assert "context" in service.client.post("/v1/completions/render", json=long).json()["error"]["message"]


def test_an_image_that_the_model_sees_is_refused_by_its_name() -> None:
    options, models = FakeOptions(images=ToyImages()), FakeModels(seeing=[DEFAULT_MODEL])
    with fake_service(options, models=models, images=Processors(ToyImages())) as service:
        content = [{"type": "text", "text": "What is this?"}, openai_part(CAT)]
        body = {"model": DEFAULT_MODEL, "messages": [{"role": "user", "content": content}]}
        refused = service.client.post("/v1/chat/completions/render", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages[0].content[1].image_url.url")


def test_it_needs_a_key_and_takes_a_place_as_any_prompt_does() -> None:
    with keyed_service(Client("one", requests_per_minute=2), Client("other")) as service:
        assert service.client.post("/v1/chat/completions/render", json=CHAT).status_code == 401
        body = {**CHAT, "model": DEFAULT_MODEL}
        for status in (200, 200, 429):
            one = service.client.post("/v1/chat/completions/render", json=body, headers=headers("one"))
            assert one.status_code == status, one.text
        asked(service, "/v1/chat/completions/render", body, headers=headers("other"))
