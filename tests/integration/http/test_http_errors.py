"""Whatever is wrong with a request is a clear 4xx that names the field, in OpenAI's shape; and the server lives on."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from anthropic.types import ModelInfo

from adapters.fake.engine import FakeModels
from adapters.fake.options import FakeOptions, reply_with
from adapters.fake.tokenizer import FakeTokenizer, FakeTokenizers
from domain.errors import ComputeFailed
from domain.ids import SequenceId
from domain.models.capability import Capability, ModelUse
from tests.support.http.clients import RawClient, chat_text, events
from tests.support.http.servers.fake_service import FakeService, fake_service

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]
JSON = {"content-type": "application/json"}
DEEP = b'{"a":' * 50_000


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=reply_with("fine"), context_length=200)) as running:
        yield running


def error_of(response: Any, status: int) -> Any:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b"hello", "not JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'"x"', "object"),
        (b"\xff\xfe\x00", "not JSON"),
        (b'{"messages":[{"role":"user","content":"\xff"}]}', "not JSON"),
        (b'{"messages":[], "temperature": NaN}', "not JSON"),
        (b'{"messages":[{"role":"user","content":"' + b"\\ud800" * 70_000 + b'"}]}', "halves of surrogate pairs"),
        (b"[" * 50_000, "object"),
        (b'{"unknown":' + b"[" * 50_000, "nested too deeply"),
        (b'{"messages":[],"chat_template_kwargs":' + DEEP, "nested too deeply"),
    ],
)
def test_bodies_that_are_no_json_object(service: FakeService, body: bytes, said: str) -> None:
    for path in (CHAT, COMPLETIONS):
        error = error_of(service.client.post(path, content=body, headers=JSON), 400)
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    assert said in error_of(service.client.post(CHAT, content=body, headers=JSON), 400)["message"]


TOOLS = [{"type": "function", "function": {"name": "look_up"}}]
# Ranges: test_sampling; forms of answers: test_grammar_fields; choices of tools: test_tool_choices.
BAD_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [7]}, "messages[0]"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [*HELLO, {"role": "user", "content": 3}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages[0].content[0].type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]},
        "messages[0].content[1].image_url",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
    ({"model": 7}, "model"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 99}, "temperature"),
    ({"top_k": 1.5}, "top_k"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"logit_bias": {"1": "x"}}, "logit_bias"),
    ({"logit_bias": {str(index): 1 for index in range(5000)}}, "logit_bias"),
    ({"seed": 2**64}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": -2}, "max_completion_tokens"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    ({"min_tokens": 10**9}, "min_tokens"),
    ({"stop": ""}, "stop"),
    ({"stop": 4}, "stop"),
    ({"n": 0}, "n"),
    ({"n": 10**6}, "n"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": []}, "stream_options"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"tools": [{"type": "magic", "function": {"name": "x"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
        "response_format.json_schema.schema",
    ),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": []}}}, "tool_choice"),
    ({"guided_json": {"type": "object"}}, "guided_json"),
    ({"grammar": 'root ::= "a"'}, "grammar"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"stop_token_ids": ["x"]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words"),
    ({"bad_words": ["x"], "guided_regex": "a"}, "bad_words"),
    ({"json_schema": {"not": {}}}, "json_schema"),
    ({"continue_final_message": True}, "messages"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"add_generation_prompt": False}, "add_generation_prompt"),
    ({"reasoning_budget": -2}, "reasoning_budget"),
    ({"reasoning_budget": 2**64}, "reasoning_budget"),
    ({"thinking_budget": -2}, "thinking_budget"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_CHAT, ids=[json.dumps(fields)[:60] for fields, _ in BAD_CHAT])
def test_chat_fields(service: FakeService, fields: dict[str, Any], param: str) -> None:
    error = error_of(service.client.post(CHAT, json={"messages": HELLO, **fields}), 400)
    assert error["param"] == param
    assert param.split("[")[0].split(".")[0] in error["message"]


# Token ids of no model: test_completion_prompts.
BAD_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["fine", ""]}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": [260]}, "prompt"),
    ({"prompt": "x" * 500}, "prompt"),
    ({"prompt": ["x"] * 500}, "prompt"),
    ({"prompt": "x", "n": 129}, "n"),
    ({"prompt": "x", "best_of": 2}, "best_of"),
    ({"prompt": "x", "suffix": "y"}, "suffix"),
    ({"prompt": "x", "logprobs": 99}, "logprobs"),
    ({"prompt": "x", "logprobs": -1}, "logprobs"),
    ({"prompt": "x", "logprobs": True}, "logprobs"),
    ({"prompt": "x", "logprobs": 21, "echo": True}, "logprobs"),
    ({"prompt": "x", "min_tokens": 400, "max_tokens": 400}, "min_tokens"),
]


@pytest.mark.parametrize(("body", "param"), BAD_COMPLETIONS, ids=[json.dumps(body)[:60] for body, _ in BAD_COMPLETIONS])
def test_completion_fields(service: FakeService, body: dict[str, Any], param: str) -> None:
    error = error_of(service.client.post(COMPLETIONS, json=body), 400)
    assert error["param"] == param


def test_what_the_template_refuses_is_the_clients_error() -> None:
    with fake_service(tokenizers=FakeTokenizers(FakeTokenizer(has_chat_template=False))) as service:
        error = error_of(service.client.post(CHAT, json={"messages": HELLO}), 400)
    assert (error["code"], error["param"]) == ("template_failed", "messages")


@pytest.mark.parametrize("model", ["gpt-9", "a/b/../c", "x" * 3000, "é"])
def test_an_unknown_model_is_not_found_and_those_served_are_listed(service: FakeService, model: str) -> None:
    for path, body in ((CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "x"})):
        error = error_of(service.client.post(path, json={**body, "model": model}), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "fake-attention, fake-hybrid" in error["message"]


def test_models_by_id_slashes_included() -> None:
    with fake_service(models=FakeModels(["org/name", "fake-attention"])) as service:
        assert [model["id"] for model in service.client.get("/v1/models").json()["data"]] == [
            "fake-attention",
            "org/name",
        ]
        assert service.client.get("/v1/models/org/name").json()["id"] == "org/name"
        assert service.client.get("/v1/models/org%2Fname").json()["id"] == "org/name"
        error = error_of(service.client.get("/v1/models/org/other"), 404)
        assert error["code"] == "model_not_found"
        assert "org/name" in error["message"]


def test_the_model_of_the_server_comes_first_in_every_list() -> None:
    with fake_service(models=FakeModels(["a", "fake-attention", "z"])) as service:
        lists = {
            "/v1/models": ("data", "id"),
            "/api/tags": ("models", "name"),
            "/models": ("data", "standing"),
        }
        for path, (of, name) in lists.items():
            found = [one[name] for one in service.client.get(path).json()[of]]
            ids = [one if isinstance(one, str) else one["id"] for one in found]
            assert ids == ["fake-attention", "a", "z"], path
        error = error_of(service.client.post(CHAT, json={"messages": HELLO, "model": "b"}), 404)
        assert "served here: fake-attention, a, z" in error["message"]


def test_models_in_the_form_of_anthropic() -> None:
    """Claude Code's picker reads no other."""
    with fake_service(models=FakeModels(["a", "fake-attention"])) as service:
        headers = {"anthropic-version": "2023-06-01"}
        service.client.post(CHAT, json={"messages": HELLO, "max_tokens": 1})
        body = service.client.get("/v1/models", headers=headers, params={"limit": 1000}).json()
        models = [ModelInfo.model_validate_json(json.dumps(one), strict=True) for one in body.pop("data")]
        assert body == {"has_more": False, "first_id": "fake-attention", "last_id": "a"}
        assert [(one.id, one.display_name) for one in models] == [(id, id) for id in ("fake-attention", "a")]
        assert [one.max_input_tokens for one in models] == [32_768, None]
        one = service.client.get("/v1/models/fake-attention", headers=headers).json()
        assert ModelInfo.model_validate_json(json.dumps(one), strict=True) == models[0]
        assert service.client.get("/v1/models/nobody", headers=headers).status_code == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", {"messages": HELLO}),
        ("/completions", {"prompt": "x"}),
        ("/responses", {"input": "x"}),
        ("/embeddings", {"input": "x", "model": "embedder"}),
    ],
)
def test_routes_of_openai_without_their_prefix(path: str, body: dict[str, Any]) -> None:
    """The base URL of some clients ends before `/v1`."""
    uses = {"embedder": ModelUse(frozenset({Capability.EMBED}))}
    with fake_service(models=FakeModels(["embedder", "fake-attention"], uses)) as service:
        answer = service.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["object"] == service.client.post(f"/v1{path}", json=body).json()["object"]
        assert error_of(service.client.post(path, json={**body, "model": 7}), 400)["param"] == "model"
        assert service.client.post(path, content=b"{}").status_code == 415


def test_a_stored_response_is_found_without_the_prefix(service: FakeService) -> None:
    id = service.client.post("/responses", json={"input": "x"}).json()["id"]
    assert service.client.get(f"/responses/{id}").json() == service.client.get(f"/v1/responses/{id}").json()
    assert service.client.get("/responses/nothing").json()["error"]["code"] == "not_found"
    assert service.client.get("/responsesx").status_code == 404


def test_a_model_of_a_kind_that_is_not_served_is_the_clients_choice() -> None:
    uses = {"bert": ModelUse(refusal="it is an encoder")}
    with fake_service(models=FakeModels(["bert", "fake-attention"], uses)) as service:
        for path in (CHAT, "/v1/messages", "/api/chat"):
            body = {"model": "bert", "messages": HELLO, "max_tokens": 1}
            refused = service.client.post(path, json=body)
            assert (refused.status_code, "it is an encoder" in refused.text) == (400, True), refused.text


def test_routes_and_methods(service: FakeService) -> None:
    for path in ("/v1", "/v1/chat", "/v2/chat/completions", "/schema/swagger", "/v1/%00", "/%ff"):
        assert error_of(service.client.get(path), 404)["code"] == "not_found"
    response = service.client.get(CHAT)
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert "POST" in response.headers["allow"]
    assert error_of(service.client.delete("/v1/models"), 405)["type"] == "invalid_request_error"


def test_a_model_that_cannot_be_loaded_says_why_and_not_where() -> None:
    with fake_service(FakeOptions(load_error="/home/me/models/toy/model.safetensors is torn")) as service:
        response = service.client.post(CHAT, json={"messages": HELLO})
        assert error_of(response, 503)["message"] == "model.safetensors is torn"
        assert response.headers["x-should-retry"] == "false"


def test_without_an_engine_the_error_says_why_and_when_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_service() as service:
        service.client.post(CHAT, json={"messages": HELLO, "max_tokens": 1})
        lost = replace(service.loop.status(), is_alive=False, fault="the engine is being restarted: it was killed")
        with monkeypatch.context() as patch:
            patch.setattr(service.loop, "status", lambda: lost)
            response = service.client.post(CHAT, json={"messages": HELLO})
            assert error_of(response, 503)["message"] == "the engine is being restarted: it was killed"
            assert response.headers["retry-after"] == "10"


def _fail_at_third_token(operation: str, sequence: SequenceId | None, count: int) -> None:
    if operation == "decode" and count == 2:
        raise ComputeFailed("the numbers went bad")


def test_a_failed_computation_is_a_500_or_an_event_in_the_stream() -> None:
    with fake_service(FakeOptions(reply=reply_with("abcdef"), hook=_fail_at_third_token)) as service:
        error = error_of(service.client.post(CHAT, json={"messages": HELLO}), 500)
        assert (error["type"], error["code"]) == ("server_error", "compute_failed")
        response = service.client.post(CHAT, json={"messages": HELLO, "stream": True})
        assert response.status_code == 200
        *chunks, last = events(response.text)
        assert chat_text(chunks) == "ab"
        assert last["error"]["code"] == "compute_failed"
        assert last["error"]["message"] == "the numbers went bad"
        text = events(service.client.post(COMPLETIONS, json={"prompt": ["a", "b"], "stream": True}).text)
        assert text[-1]["error"]["code"] == "compute_failed"
        service.wait_until_idle()


def _broken() -> dict[str, str]:
    raise RuntimeError("secret detail")


def test_a_defect_is_logged_and_counted_but_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with fake_service(trace_context=_broken) as service, caplog.at_level(logging.ERROR, "cairn.http"):
        response = service.client.post(CHAT, json={"messages": HELLO})
        error = error_of(response, 500)
        assert error["code"] == "internal_error"
        assert "secret" not in response.text
        assert "Traceback" not in response.text
        faults = service.events.of("FaultObserved")
        assert [fault.where for fault in faults] == ["http"]
    assert "secret detail" in caplog.text
    assert response.headers["x-request-id"] in caplog.text


def test_a_client_that_leaves_while_sending_is_no_defect(service: FakeService) -> None:
    client = RawClient(service.base_url, CHAT, {"messages": HELLO}, announce_extra_bytes=100)
    client.leave()
    assert service.client.post(CHAT, json={"messages": HELLO}).status_code == 200
    assert not service.events.of("FaultObserved")
