"""Answers in a given form and forced calls, over a socket, from an embedded model, by the official packages."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import httpx
import pytest
from openai import OpenAI
from pydantic import BaseModel

from application.settings import ServerSettings
from tests.support.http.servers.live_service import live_service, settings_of
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

MODEL = "cairn-demo"
ASK = "What is the weather in Bern?"


class Weather(BaseModel):
    model_config = {"extra": "forbid"}
    city: Literal["Bern", "Rome"]
    days: list[bool]
    kind: Literal["sun", "rain"]


SCHEMA = {**Weather.model_json_schema()}
SCHEMA["properties"]["days"]["maxItems"] = 2
FORMAT: dict[str, Any] = {"type": "json_schema", "schema": SCHEMA}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": ASK}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": SCHEMA}},
        },
    ),
    "messages": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": ASK}], "output_config": {"format": FORMAT}},
    ),
}
DRAWN: dict[str, Any] = {"reasoning_effort": "none", "seed": 7}
"""At a temperature a small model may think until its context ends."""


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with live_service(replace(settings_of(MODEL), server=ServerSettings(port=0))) as live:
        yield live.base_url


def whole(dialect: str, answer: dict[str, Any]) -> str:
    if dialect == "chat":
        return answer["choices"][0]["message"]["content"]
    (text,) = [block["text"] for block in answer["content"] if block["type"] == "text"]
    return text


def streamed(dialect: str, lines: list[str]) -> str:
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    events: list[dict[str, Any]] = [json.loads(one) for one in data]
    if dialect == "chat":
        return "".join(choice["delta"].get("content") or "" for one in events for choice in one["choices"])
    return "".join(one["delta"]["text"] for one in events if one.get("delta", {}).get("type") == "text_delta")


@pytest.mark.parametrize(("dialect", "temperature"), [("chat", 1), ("messages", 0)])
def test_an_answer_has_its_form_whole_and_streamed(base_url: str, dialect: str, temperature: float) -> None:
    path, body = BODIES[dialect]
    with httpx.Client(base_url=base_url, timeout=PATIENCE_S) as client:
        body = {"model": MODEL, "temperature": temperature, **body, **(DRAWN if temperature else {})}
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        Weather.model_validate_json(whole(dialect, answer.json()))
        with client.stream("POST", path, json={**body, "stream": True}) as stream:
            Weather.model_validate_json(streamed(dialect, list(stream.iter_lines())))


GREEDY: Any = {"temperature": 0}


def test_a_pydantic_model_comes_back_parsed(base_url: str) -> None:
    with OpenAI(base_url=f"{base_url}/v1", api_key="none", timeout=PATIENCE_S) as client:
        messages: Any = [{"role": "user", "content": ASK}]
        answer = client.chat.completions.parse(
            model=MODEL, messages=messages, response_format=Weather, max_tokens=300, **GREEDY
        )
        assert answer.choices[0].message.parsed is not None
        response = client.responses.parse(model=MODEL, input=ASK, text_format=Weather, max_output_tokens=300, **GREEDY)
        assert response.output_parsed is not None
