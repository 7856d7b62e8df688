"""POST /v1/responses over a socket, on the toy engine."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.environment import FakeClock
from adapters.fake.options import FakeOptions, reply_with
from adapters.sqlite.document_store import SqliteDocumentStore
from domain.request.document import Document, DocumentKey, Owner
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.telemetry.recording import RecordingEvents

PATH = "/v1/responses"
HI = {"role": "user", "content": "Hi"}


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


def test_input_tokens_are_those_of_the_whole_prompt(service: FakeService) -> None:
    first = post(service, input="Tell me more.")
    tool = {"type": "function", "name": "read", "parameters": {"type": "object"}}
    body = {"input": "And then?", "previous_response_id": first["id"], "tools": [tool], "instructions": "Be brief."}
    counted = service.client.post(f"{PATH}/input_tokens", json=body)
    assert counted.status_code == 200, counted.text
    expected = post(service, **body)["usage"]["input_tokens"]
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": expected}
    missing = service.client.post(f"{PATH}/input_tokens", json={**body, "previous_response_id": "resp_nobody"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (400, "previous_response_not_found")


def test_ids_begin_as_openai_s(service: FakeService) -> None:
    made = post(service)
    assert made["id"].startswith("resp_")
    assert made["output"][0]["id"].startswith("msg_resp_")


def test_responses_of_before_are_found_by_their_ids() -> None:
    """An earlier version wrote `resp-...`."""
    store = SqliteDocumentStore(None, 0, RecordingEvents(), FakeClock())
    item = {"id": "msg_resp-1_0", "type": "message", "role": "assistant", "content": "Hello Alice."}
    turn = {"previous": None, "input": [{"role": "user", "content": "I am Alice."}], "output": [item]}
    bodies = {("response", "resp-1"): {"id": "resp-1"}, ("turn", "resp-1"): turn, ("output_item", item["id"]): item}
    owner = Owner.of("", "")
    store.put(
        [
            Document(DocumentKey(owner, kind, name), json.dumps(body).encode(), "fake-attention", 1)
            for (kind, name), body in bodies.items()
        ]
    )
    with fake_service(documents=store) as service:
        assert service.client.get(f"{PATH}/resp-1").json() == {"id": "resp-1"}
        went_on = post(service, input="Who am I?", previous_response_id="resp-1", max_output_tokens=1)
        by_item = post(service, input=[{"type": "item_reference", "id": item["id"]}, HI], max_output_tokens=1)
        alone = post(service, input="Who am I?", max_output_tokens=1)
        assert went_on["previous_response_id"] == "resp-1"
        assert went_on["usage"]["input_tokens"] > alone["usage"]["input_tokens"]
        assert by_item["usage"]["input_tokens"] > 0
