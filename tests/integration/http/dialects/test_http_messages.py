"""POST /v1/messages and its count of tokens, over a socket, on the toy engine."""

from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.options import FakeOptions, reply_with
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.telemetry.named_events import named_events

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    options = FakeOptions(reply=reply_with("Hé!"), context_length=400)
    with fake_service(options, reuses=True) as running:
        yield running


def post(service: FakeService, **body: Any) -> dict[str, Any]:
    response = service.client.post(PATH, json={"max_tokens": 50, "messages": HELLO, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def error_of(service: FakeService, status: int, path: str = PATH, **body: Any) -> dict[str, Any]:
    response = service.client.post(path, json={"max_tokens": 50, "messages": HELLO, **body})
    assert response.status_code == status, response.text
    told = response.json()
    assert told["type"] == "error"
    error: dict[str, Any] = told["error"]
    return error


def test_what_was_reused_is_not_counted_as_input(service: FakeService) -> None:
    system = "All the rules of the house, at length. " * 4
    first = post(service, system=system)["usage"]
    second = post(service, system=system)["usage"]
    assert second["cache_read_input_tokens"] > 100
    num_prompt = first["input_tokens"] + first["cache_read_input_tokens"]
    assert second["input_tokens"] + second["cache_read_input_tokens"] == num_prompt
    body = {"messages": HELLO, "system": system}
    assert service.client.post(COUNT, json=body).json() == {"input_tokens": num_prompt}
    streamed = service.client.post(
        f"{PATH}?beta=true",
        json={**body, "max_tokens": 50, "stream": True},
        headers={"anthropic-beta": "claude-code-20250219", "anthropic-version": "2023-06-01"},
    )
    assert named_events(streamed.text)[0]["message"]["usage"]["cache_read_input_tokens"] > 100


def test_more_tokens_than_there_is_room_for_are_as_many_as_there_are(service: FakeService) -> None:
    assert post(service, max_tokens=32_000)["stop_reason"] == "end_turn"


def test_a_prompt_that_does_not_fit_says_so_in_the_words_that_make_claude_code_compact(service: FakeService) -> None:
    long = [{"role": "user", "content": "x" * 390}]
    error = error_of(service, 400, messages=long)
    assert error == {"type": "invalid_request_error", "message": "prompt is too long: 409 tokens > 400 maximum"}
    assert service.client.post(COUNT, json={"messages": long}).json() == {"input_tokens": 409}
