"""POST /v1/responses over a socket, on the toy engine."""

from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.options import FakeOptions, reply_with
from tests.support.http.servers.fake_service import FakeService, fake_service

PATH = "/v1/responses"


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=reply_with("Hé!"), context_length=400), reuses=True) as running:
        yield running


def post(service: FakeService, **body: Any) -> dict[str, Any]:
    response = service.client.post(PATH, json={"input": "hi", **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def error_of(service: FakeService, status: int, **body: Any) -> dict[str, Any]:
    response = service.client.post(PATH, json={"input": "hi", **body})
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def test_what_was_reused_is_reported(service: FakeService) -> None:
    rules = "All the rules of the house, at length. " * 4
    first = post(service, instructions=rules)["usage"]
    second = post(service, instructions=rules)["usage"]
    assert second["input_tokens"] == first["input_tokens"]
    assert second["input_tokens_details"]["cached_tokens"] > 100


def test_a_prompt_that_does_not_fit_says_so_in_the_words_that_make_agents_compact(service: FakeService) -> None:
    error = error_of(service, 400, input="x" * 390)
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 400 tokens" in error["message"]
    chat = {"messages": [{"role": "user", "content": "x" * 390}]}
    told = service.client.post("/v1/chat/completions", json=chat).json()["error"]
    assert told["code"] == error["code"]
    assert told["message"].replace("messages", "input") == error["message"]  # each names its own field


def test_it_can_be_explained_and_warmed(service: FakeService) -> None:
    body = {"input": "warm me up", "instructions": "As told. " * 20}
    warmed = service.client.post("/v1/cache/warm", json=body).json()["prompts"][0]
    explained = service.client.post("/v1/cache/explain", json=body).json()["prompts"][0]
    assert explained["prompt_tokens"] == warmed["prompt_tokens"]
    assert explained["hot_tokens"] > 100
