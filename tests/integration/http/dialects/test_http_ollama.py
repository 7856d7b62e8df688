"""Ollama's dialect over a socket: answers whole and in lines, lists of models, and what is refused in its own words."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from adapters.fake.options import FakeOptions, reply_with
from adapters.fake.tokenizer import FakeTokenizer, FakeTokenizers
from domain.client import Client, KeyRing, key_digest
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
STATS = {
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
    "done_reason",
}
OTHER = "fake-hybrid"
TOOL = {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=reply_with("Hi ✓"))) as running:
        yield running


def post(service: FakeService, path: str, body: dict[str, Any]) -> httpx.Response:
    return service.client.post(f"/api/{path}", json=body)


def whole(service: FakeService, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = post(service, path, {"stream": False, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("application/x-ndjson")
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def text_of(answer: dict[str, Any]) -> str:
    text = answer["message"]["content"] if "message" in answer else answer["response"]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize(("path", "body"), [("chat", HELLO), ("generate", {"prompt": "Hello"})])
def test_a_stream_is_the_default_and_adds_up_to_the_whole(
    service: FakeService, path: str, body: dict[str, Any]
) -> None:
    told = lines(post(service, path, {**body, "model": f"{DEFAULT_MODEL}:latest"}))
    answer = whole(service, path, {**body, "model": DEFAULT_MODEL})
    assert "".join(map(text_of, told)) == text_of(answer) == "Hi ✓"
    assert {one["model"] for one in told} == {f"{DEFAULT_MODEL}:latest"}
    *pieces, last = told
    assert not any(one["done"] or STATS & set(one) for one in pieces)
    for one in (last, answer):
        assert one["done"] is True
        assert set(one) >= STATS
        assert all(isinstance(one[name], int) and one[name] >= 0 for name in STATS - {"done_reason"})
        assert one["total_duration"] == one["load_duration"] + one["prompt_eval_duration"] + one["eval_duration"]
        assert one["done_reason"] == "stop"
        assert one["eval_count"] > 0
    assert last["prompt_eval_count"] == answer["prompt_eval_count"] > 0


def test_a_chat_and_a_generate_of_it_are_one_prompt(service: FakeService) -> None:
    chat = whole(service, "chat", {"messages": [{"role": "system", "content": "Be brief."}, *HELLO["messages"]]})
    generate = whole(service, "generate", {"prompt": "Hello", "system": "Be brief."})
    raw = whole(service, "generate", {"prompt": "Hello", "raw": True})
    assert chat["prompt_eval_count"] == generate["prompt_eval_count"] > raw["prompt_eval_count"] == 5


def test_options_reach_the_model(service: FakeService) -> None:
    short = whole(service, "chat", {**HELLO, "options": {"num_predict": 2, "num_ctx": 8192, "temperature": 0}})
    assert (text_of(short), short["done_reason"], short["eval_count"]) == ("Hi", "length", 2)
    assert text_of(whole(service, "chat", {**HELLO, "options": {"num_predict": -1, "stop": "✓"}})) == "Hi "
    assert text_of(whole(service, "chat", {**HELLO, "options": {"stop": ["i"]}, "keep_alive": "5m"})) == "H"


@pytest.mark.parametrize(("path", "body"), [("chat", HELLO), ("generate", {"prompt": "Hello"})])
def test_each_token_has_its_log_probability(service: FakeService, path: str, body: dict[str, Any]) -> None:
    body = {**body, "logprobs": True, "top_logprobs": 2}
    answer = whole(service, path, body)
    assert len(answer["logprobs"]) == answer["eval_count"]
    for entry in answer["logprobs"]:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(entry["top_logprobs"]) == 2
    assert text_of(answer).startswith(answer["logprobs"][0]["token"])
    told = lines(post(service, path, body))
    assert [entry for one in told for entry in one.get("logprobs", [])] == answer["logprobs"]
    plain = whole(service, path, {**body, "logprobs": False, "top_logprobs": 0})
    assert "logprobs" not in plain


@pytest.mark.parametrize("has_end", [True, False], ids=["ended", "held back"])
def test_reasoning_that_is_switched_off_is_not_there_whatever_the_template_does(has_end: bool) -> None:
    options = FakeOptions(reply=reply_with("<think>Hm.</think>fine"))
    with fake_service(options, tokenizers=FakeTokenizers(FakeTokenizer(reasons=has_end))) as musing:
        for path, body in (("chat", HELLO), ("generate", {"prompt": "Hello"})):
            assert "thinking" in post(musing, path, body).text
            told = lines(post(musing, path, {**body, "think": False}))
            answer = whole(musing, path, {**body, "think": False})
            assert "thinking" not in json.dumps([*told, answer])
            if not has_end:
                assert "".join(map(text_of, told)) == text_of(answer) == "fine"


def test_a_conversation_with_calls_is_rendered(service: FakeService) -> None:
    call = {"function": {"name": "read", "arguments": {"path": "a"}}}
    messages = [
        *HELLO["messages"],
        {"role": "assistant", "content": "", "thinking": "Let me see.", "tool_calls": [call, call]},
        {"role": "tool", "tool_name": "read", "content": "one"},
        {"role": "tool", "tool_name": "read", "content": "two"},
    ]
    answer = whole(service, "chat", {"messages": messages, "tools": [TOOL]})
    assert answer["prompt_eval_count"] > whole(service, "chat", HELLO)["prompt_eval_count"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("chat", {"messages": [{"role": "nobody", "content": ""}]}, "messages[0].role"),
        ("chat", {"messages": [{"role": "user", "content": "", "images": ["aGk="]}]}, "messages[0].images"),
        ("chat", {**HELLO, "options": {"mirostat": 1}}, "mirostat"),
        ("chat", {**HELLO, "options": {"temperature": -1}}, "options.temperature"),
        ("chat", {**HELLO, "options": {"top_p": 7}}, "options.top_p"),
        ("chat", {**HELLO, "options": {"num_predict": "many"}}, "options.num_predict"),
        ("chat", {**HELLO, "format": "yaml"}, "format"),
        ("chat", {**HELLO, "format": {"type": "object", "not": {}}}, "format"),
        ("chat", {**HELLO, "top_logprobs": 2}, "top_logprobs"),
        ("chat", {**HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("generate", {"images": ["aGk="]}, "prompt"),
        ("generate", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("generate", {"prompt": "a", "images": ["aGk="]}, "images"),
        ("generate", {"prompt": "a", "context": [1]}, "context"),
        ("generate", {"prompt": "a", "template": "{{.}}"}, "template"),
        ("generate", {"prompt": "a", "raw": True, "system": "b"}, "system"),
        ("embed", {"input": "a"}, "cannot embed: it can generate"),
        ("embeddings", {"prompt": 7}, "prompt"),
        ("show", {"model": 7}, "model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_named(service: FakeService, path: str, body: dict[str, Any], field: str) -> None:
    response = post(service, path, body)
    assert response.status_code == 400, response.text
    assert set(response.json()) == {"error"}
    assert field in response.json()["error"]


NOTHING: list[tuple[str, dict[str, Any]]] = [
    ("chat", {}),
    ("chat", {"messages": []}),
    ("chat", {"messages": None, "stream": True}),
    ("generate", {}),
    ("generate", {"prompt": "", "stream": False, "keep_alive": "5m"}),
]


@pytest.mark.parametrize(("path", "body"), NOTHING)
def test_a_body_that_asks_for_nothing_loads_its_model(path: str, body: dict[str, Any]) -> None:
    with fake_service() as service:
        response = post(service, path, {"model": f"{OTHER}:latest", **body})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        answer = response.json()
        assert (answer["model"], answer["done"], answer["done_reason"]) == (f"{OTHER}:latest", True, "load")
        assert text_of(answer) == ""
        assert [one["name"] for one in service.client.get("/api/ps").json()["models"]] == [OTHER]
        assert not service.events.of("RequestQueued")


@pytest.mark.parametrize("zero", [0, 0.0, "0", "0s", "0m0s"])
def test_no_time_to_live_unloads_it(zero: object) -> None:
    with fake_service() as service:
        for path, reason in (("generate", "load"), ("chat", "unload"), ("generate", "unload")):
            keep = {} if reason == "load" else {"keep_alive": zero}
            assert post(service, path, {"model": OTHER, **keep}).json()["done_reason"] == reason
        service.wait_until(lambda: not service.engine.loaded, "the model to be unloaded")
        assert post(service, "generate", {"model": "nobody", "keep_alive": zero}).status_code == 404


def test_who_may_not_manage_models_unloads_none() -> None:
    keys = KeyRing([Client("agent", key_digest(b"k"))])
    with fake_service(keys=keys) as service:
        service.client.headers["authorization"] = "Bearer k"
        assert post(service, "generate", {"model": OTHER}).json()["done_reason"] == "load"
        refused = post(service, "generate", {"model": OTHER, "keep_alive": 0})
        assert (refused.status_code, set(refused.json())) == (403, {"error"})
        assert service.engine.loaded


def test_unknown_models_and_routes_are_in_its_own_shape(service: FakeService) -> None:
    for path, body in (("chat", HELLO), ("show", {}), ("generate", {})):
        response = post(service, path, {**body, "model": "nobody"})
        assert response.status_code == 404
        assert DEFAULT_MODEL in response.json()["error"]
    response = post(service, "pull", {"model": "x"})
    assert (response.status_code, "not found" in response.json()["error"]) == (404, True)
    response = post(service, "push", {"model": "x"})
    assert (response.status_code, set(response.json())) == (404, {"error"})


def test_models_are_listed(service: FakeService) -> None:
    whole(service, "chat", HELLO)
    tags = service.client.get("/api/tags").json()["models"]
    assert DEFAULT_MODEL in [model["name"] for model in tags]
    assert all(len(model["digest"]) == 64 and model["name"] == model["model"] for model in tags)
    (running,) = service.client.get("/api/ps").json()["models"]
    assert running["name"] == DEFAULT_MODEL
    assert running["digest"] == next(model["digest"] for model in tags if model["name"] == DEFAULT_MODEL)
    shown = post(service, "show", {"model": f"{DEFAULT_MODEL}:latest"}).json()
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == running["context_length"]
    assert "completion" in shown["capabilities"]
    assert shown["modelfile"].startswith(f"FROM {DEFAULT_MODEL}\nPARAMETER num_ctx ")
    assert shown["parameters"] == f"num_ctx {running['context_length']}"
    assert shown["template"] == "{{ messages }}"
    assert service.client.get("/api/version").json()["version"].count(".") == 2


def test_a_model_that_is_here_needs_no_download(service: FakeService) -> None:
    """Clients pull a model before they use it."""
    for body in ({"model": DEFAULT_MODEL}, {"name": f"{DEFAULT_MODEL}:latest", "stream": False}):
        response = post(service, "pull", body)
        assert response.status_code == 200, response.text
        assert [json.loads(line) for line in response.text.splitlines()] == [{"status": "success"}]
