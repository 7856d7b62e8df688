"""What can never fit in memory is refused on every route that computes, before a header is sent; and then the next one
is answered."""

from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.engine import FakeModels
from adapters.fake.options import FakeOptions, reply_with
from domain.models.capability import Capability, ModelUse
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service

TOKEN_BYTES = 16
"""Of the toy model's two layers."""

ROOM_TOKENS = 1_000
EMBEDDER, RERANKER = "toy-embed", "toy-rerank"
USES = {EMBEDDER: ModelUse(frozenset({Capability.EMBED})), RERANKER: ModelUse(frozenset({Capability.SCORE}))}
SHORT, LONG = "x" * 40, "x" * 1_100


def _chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _bodies(text: str) -> dict[str, dict[str, Any]]:
    """By route and what is special about the body: everything that is computed."""
    return {
        "/v1/chat/completions": {"messages": _chat(text)},
        "/v1/chat/completions n": {"messages": _chat(text), "n": 2, "max_tokens": 4},
        "/v1/chat/completions scored": {"messages": _chat(text), "prompt_logprobs": 1, "max_tokens": 1},
        "/v1/completions": {"prompt": text},
        "/v1/completions ids": {"prompt": [65] * len(text)},
        "/v1/completions list": {"prompt": ["a", text], "max_tokens": 4},
        "/v1/completions scored": {"prompt": text, "echo": True, "logprobs": 1, "max_tokens": 0},
        "/v1/responses": {"input": text},
        "/v1/responses/compact": {"input": text},
        "/v1/messages": {"messages": _chat(text), "max_tokens": 4},
        "/api/chat": {"messages": _chat(text)},
        "/api/generate": {"prompt": text},
        "/v1/cache/warm": {"prompt": text},
        **_pooled(text),
    }


def _pooled(text: str) -> dict[str, dict[str, Any]]:
    ranked = {"model": RERANKER, "query": "q", "documents": ["a", text]}
    pairs = {"model": RERANKER, "text_1": "q", "text_2": text}
    return {
        "/v1/embeddings": {"model": EMBEDDER, "input": ["a", text]},
        "/api/embed": {"model": EMBEDDER, "input": text},
        "/api/embeddings": {"model": EMBEDDER, "prompt": text},
        "/v1/rerank": ranked,
        "/v2/rerank": ranked,
        "/score": pairs,
        "/v1/score": pairs,
    }


STREAMED = [
    case
    for case in _bodies("")
    if case.split()[0] != "/v1/cache/warm" and "scored" not in case and case not in _pooled("")
]

COMPUTES_NOTHING = {
    "/admin/api/drain",
    "/admin/api/pulls",
    "/admin/api/quantise",
    "/admin/api/quantise/plan",
    "/admin/api/requests/{request_id:str}/cancel",
    "/v1/responses/{response_id:str}/cancel",
    "/v1/responses/input_tokens",
    "/v1/messages/count_tokens",
    "/api/show",
    "/api/pull",
    "/v1/mcp/execute",
    "/v1/mcp/servers/{name:str}/restart",
    "/v1/cache/explain",
    "/admin/api/settings/keys",
    "/admin/api/settings/undo",
    "/v1/cache/clear",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/responses/render",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/models/load",
    "/models/unload",
    "/models/pin",
    "/models/unpin",
}


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(
        FakeOptions(reply=reply_with("ok")),
        models=FakeModels((DEFAULT_MODEL, EMBEDDER, RERANKER), USES),
        room_bytes=ROOM_TOKENS * TOKEN_BYTES,
        reuses=True,
    ) as running:
        yield running


def refused(service: FakeService, case: str, **fields: Any) -> dict[str, Any]:
    answer = service.client.post(case.split()[0], json={"model": service.model} | _bodies(LONG)[case] | fields)
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()
    return error


def test_every_route_that_takes_a_body_is_known_here(service: FakeService) -> None:
    """A new one belongs to the bodies above, unless it computes nothing."""
    posted = {route.path for route in service.app.routes if "POST" in getattr(route, "methods", ())}
    computing = {case.split()[0] for case in _bodies("")}
    assert posted == computing | COMPUTES_NOTHING


@pytest.mark.parametrize("case", _bodies(""))
def test_what_never_fits_is_refused_and_the_next_one_answered(service: FakeService, case: str) -> None:
    stream = {"stream": False} if case.startswith("/api/") else {}
    body = refused(service, case, **stream)
    told = str(body)
    assert "prefill_memory_exceeded" in told
    numbers = body["memory"] if "memory" in body else body["error"]["memory"]
    assert numbers["estimated_bytes"] > numbers["available_bytes"] == ROOM_TOKENS * TOKEN_BYTES
    assert numbers["limit_bytes"] > numbers["available_bytes"]
    assert 0 < numbers["largest_prompt_tokens"] < len(LONG)
    answer = service.client.post(case.split()[0], json={"model": service.model} | _bodies(SHORT)[case] | stream)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("case", STREAMED)
def test_streams_are_refused_with_a_status(service: FakeService, case: str) -> None:
    assert "prefill_memory_exceeded" in str(refused(service, case, stream=True))


def test_nothing_of_it_was_submitted(service: FakeService) -> None:
    num_queued = len(service.events.of("RequestQueued"))
    refused(service, "/v1/completions")
    assert len(service.events.of("RequestQueued")) == num_queued
    assert service.events.of("RequestRefused")[-1].error_code == "prefill_memory_exceeded"


def test_the_prompt_that_a_refusal_names_fits_beside_what_the_process_holds_itself(service: FakeService) -> None:
    service.memory.other_bytes = ROOM_TOKENS * TOKEN_BYTES // 2
    try:
        numbers = refused(service, "/v1/completions ids")["error"]["memory"]
        assert numbers["available_bytes"] == ROOM_TOKENS * TOKEN_BYTES // 2
        largest = {"model": service.model, "prompt": [65] * numbers["largest_prompt_tokens"]}
        assert service.client.post("/v1/completions", json=largest).status_code == 200
    finally:
        service.memory.other_bytes = 0


class TestWords:
    """On which agents shorten a conversation."""

    def test_openai(self, service: FakeService) -> None:
        error = refused(service, "/v1/chat/completions")["error"]
        assert (error["code"], error["type"], error["param"]) == (
            "prefill_memory_exceeded",
            "invalid_request_error",
            "messages",
        )
        most = error["memory"]["largest_prompt_tokens"] + 1
        assert f"this model's maximum context length is {most} tokens" in error["message"]

    def test_codex(self, service: FakeService) -> None:
        """It acts on this code only."""
        error = refused(service, "/v1/responses", stream=True)["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
        assert error["message"].startswith("prefill_memory_exceeded: ")

    def test_claude_code(self, service: FakeService) -> None:
        error = refused(service, "/v1/messages")["error"]
        assert error["type"] == "invalid_request_error"
        num_prompt = service.client.post("/v1/messages/count_tokens", json=_bodies(LONG)["/v1/messages"]).json()
        assert error["message"].startswith(f"prompt is too long: {num_prompt['input_tokens']} tokens > ")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"])
def test_an_answer_may_be_shorter_than_its_upper_bound(service: FakeService, path: str) -> None:
    """Agents ask for 32,000 tokens whatever they need."""
    name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    prompt = {"prompt": "x" * 400, "input": "x" * 400, "messages": _chat("x" * 400)}
    wanted = next(field for field in prompt if field in str(_bodies("")[path]))
    body = {wanted: prompt[wanted], name: 32_000}
    assert service.client.post(path, json=body).status_code == 200


def test_an_answer_is_as_long_as_memory_allows() -> None:
    with fake_service(FakeOptions(eos_every=0, context_length=4_000), room_bytes=300 * TOKEN_BYTES) as service:
        chat = service.client.post("/v1/chat/completions", json={"messages": _chat("x")}).json()
        assert chat["usage"]["total_tokens"] == 300
        assert chat["choices"][0]["finish_reason"] == "length"
        two = service.client.post("/v1/chat/completions", json={"messages": _chat("x"), "n": 2}).json()
        assert two["usage"]["prompt_tokens"] * 2 + two["usage"]["completion_tokens"] == 300
        text = service.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 300}).json()
        assert (text["usage"]["total_tokens"], text["choices"][0]["finish_reason"]) == (300, "length")
        least = {"prompt": "x", "max_tokens": 300, "min_tokens": 300}
        assert service.client.post("/v1/completions", json=least).status_code == 400
