"""Answers in a form and forced calls, whole and streamed alike, in every dialect, over a socket with the toy engine."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import httpx
import pytest
from openai import OpenAI
from pydantic import BaseModel

from application.settings import ServerSettings
from tests.support.http.servers.live_service import FAKE, live_service, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.named_events import named_events

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["sun", "rain"]},
        "days": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3},
    },
    "required": ["kind", "days"],
}
ASK = {"model": FAKE, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with (
        live_service(replace(settings_of(), server=ServerSettings(port=0))) as live,
        httpx.Client(base_url=live.base_url, timeout=PATIENCE_S) as client,
    ):
        yield client


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


def fits(text: str) -> bool:
    answer = json.loads(text)
    return set(answer) == {"kind", "days"} and answer["kind"] in ("sun", "rain") and set(answer["days"]) <= {1, 2}


@pytest.mark.parametrize("path", ["chat", "generate"])
def test_ollama_format_holds_the_answer(client: httpx.Client, path: str) -> None:
    asked = ASK if path == "chat" else {"model": FAKE, "prompt": "hi"}
    body = {**asked, "format": SCHEMA, "think": False, "options": {"temperature": 0, "num_predict": 200}}
    whole = post(client, f"/api/{path}", {**body, "stream": False}).json()
    lines = [json.loads(line) for line in post(client, f"/api/{path}", body).text.splitlines()]

    def text(told: dict[str, Any]) -> str:
        return told["message"]["content"] if path == "chat" else told["response"]

    assert whole["done_reason"] == "stop"
    assert fits(text(whole))
    assert "".join(map(text, lines)) == text(whole)


def test_ollama_format_json_is_an_object(client: httpx.Client) -> None:
    options = {"seed": 5, "temperature": 1, "num_predict": 200}
    body = {**ASK, "format": "json", "think": False, "options": options, "stream": False}
    answer = post(client, "/api/chat", body).json()
    assert answer["message"]["content"].startswith("{")
    if answer["done_reason"] == "stop":
        assert isinstance(json.loads(answer["message"]["content"]), dict)


FORMAT = {"type": "json_schema", "name": "weather", "schema": SCHEMA}
FORMED: list[tuple[str, dict[str, Any], Callable[[Any], str]]] = [
    (
        "/v1/messages",
        {**ASK, "max_tokens": 300, "output_config": {"format": FORMAT}},
        lambda answer: answer["content"][-1]["text"],
    ),
    (
        "/v1/responses",
        {"model": FAKE, "input": "hi", "reasoning": {"effort": "none"}, "text": {"format": FORMAT}},
        lambda answer: answer["output"][-1]["content"][0]["text"],
    ),
]


@pytest.mark.parametrize(("path", "body", "text"), FORMED, ids=[path for path, _, _ in FORMED])
def test_an_answer_has_its_form(
    client: httpx.Client, path: str, body: dict[str, Any], text: Callable[[Any], str]
) -> None:
    assert fits(text(post(client, path, {**body, "temperature": 0}).json()))


class Weather(BaseModel):
    kind: Literal["sun", "rain"]
    dry: bool


def test_a_pydantic_model_comes_back_parsed_by_openais_client(client: httpx.Client) -> None:
    with OpenAI(base_url=f"{client.base_url}/v1", api_key="none", timeout=PATIENCE_S) as openai:
        answer = openai.chat.completions.parse(
            model=FAKE,
            messages=[{"role": "user", "content": "hi"}],
            response_format=Weather,
            temperature=0,
            reasoning_effort="none",
        )
    assert isinstance(answer.choices[0].message.parsed, Weather)


FUNCTION = {"name": "report", "description": "", "parameters": SCHEMA}


def chat_call(client: httpx.Client) -> tuple[str, str]:
    forced = {"type": "function", "function": {"name": "report"}}
    body = {**ASK, "temperature": 0, "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": forced}
    (call,) = post(client, "/v1/chat/completions", body).json()["choices"][0]["message"]["tool_calls"]
    lines = post(client, "/v1/chat/completions", {**body, "stream": True}).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert not any(delta.get("content") for delta in deltas)
    pieces = [piece["function"] for delta in deltas for piece in delta.get("tool_calls") or []]
    assert [piece["name"] for piece in pieces if piece.get("name")] == ["report"]
    return call["function"]["arguments"], "".join(piece.get("arguments") or "" for piece in pieces)


def response_call(client: httpx.Client) -> tuple[str, str]:
    body = {"model": FAKE, "input": "hi", "temperature": 0, "tools": [{"type": "function", **FUNCTION}]}
    body["tool_choice"] = {"type": "function", "name": "report"}
    calls = [one for one in post(client, "/v1/responses", body).json()["output"] if one["type"] == "function_call"]
    events = named_events(post(client, "/v1/responses", {**body, "stream": True}).text)
    told = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    return calls[0]["arguments"], "".join(told)


def message_call(client: httpx.Client) -> tuple[str, str]:
    tool = {"name": "report", "input_schema": SCHEMA}
    body = {
        **ASK,
        "max_tokens": 300,
        "temperature": 0,
        "tools": [tool],
        "tool_choice": {"type": "tool", "name": "report"},
    }
    blocks = post(client, "/v1/messages", body).json()["content"]
    events = named_events(post(client, "/v1/messages", {**body, "stream": True}).text)
    told = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    streamed = "".join(delta["partial_json"] for delta in told if delta["type"] == "input_json_delta")
    return json.dumps(blocks[-1]["input"]), streamed


@pytest.mark.parametrize("call", [chat_call, response_call, message_call])
def test_a_forced_call_is_the_same_whole_and_streamed(client: httpx.Client, call: Any) -> None:
    whole, streamed = call(client)
    assert fits(whole)
    assert json.loads(streamed) == json.loads(whole)
