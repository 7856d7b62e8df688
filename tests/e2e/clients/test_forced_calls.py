"""A call that must be made is made and parsed, in every dialect, by an embedded model that was asked something else."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from application.settings import ServerSettings
from tests.support.http.asking import settings_of
from tests.support.http.servers.live_service import live_service
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

MODEL, HYBRID = "cairn-demo", "cairn-demo-hybrid"
ASK = "Repeat: blue"
KINDS: dict[str, Any] = {"kind": {"enum": ["sun", "rain"]}}
PARAMETERS = {"type": "object", "properties": KINDS, "required": ["kind"], "additionalProperties": False}
FUNCTIONS: list[dict[str, Any]] = [{"name": name, "parameters": PARAMETERS} for name in ("report", "forecast")]
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": ASK}],
    "tools": [{"type": "function", "function": function} for function in FUNCTIONS],
}
RESPONSE: dict[str, Any] = {"input": ASK, "tools": [{"type": "function", **function} for function in FUNCTIONS]}
MESSAGE: dict[str, Any] = {
    "messages": [{"role": "user", "content": ASK}],
    "tools": [{"name": function["name"], "input_schema": PARAMETERS} for function in FUNCTIONS],
}
ONE = {"parallel_tool_calls": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat named": (
        "/v1/chat/completions",
        {**CHAT, "tool_choice": {"type": "function", "function": {"name": "forecast"}}},
    ),
    "responses required": ("/v1/responses", {**RESPONSE, **ONE, "tool_choice": "required"}),
    "messages any": (
        "/v1/messages",
        {**MESSAGE, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    ),
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with (
        live_service(replace(settings_of(MODEL), server=ServerSettings(port=0))) as live,
        httpx.Client(base_url=live.base_url, timeout=PATIENCE_S) as client,
    ):
        yield client


def calls_of(answer: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    if "choices" in answer:
        message = answer["choices"][0]["message"]
        assert message["content"] is None
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        called = [call["function"] for call in message["tool_calls"]]
        return [(call["name"], json.loads(call["arguments"])) for call in called]
    if "output" in answer:
        items = [item for item in answer["output"] if item["type"] != "reasoning"]
        return [(item["name"], json.loads(item["arguments"])) for item in items]
    assert answer["stop_reason"] == "tool_use"
    return [(block["name"], block["input"]) for block in answer["content"] if block["type"] != "thinking"]


def test_a_hybrid_makes_its_call_too_streamed() -> None:
    options = {"temperature": 0, "max_tokens": 100, "reasoning_effort": "none", "stream": True}
    body = {"model": HYBRID, **options, **CASES["chat named"][1]}
    with (
        live_service(replace(settings_of(HYBRID), server=ServerSettings(port=0))) as live,
        httpx.Client(base_url=live.base_url, timeout=PATIENCE_S) as client,
    ):
        lines = client.post("/v1/chat/completions", json=body).text.splitlines()
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    pieces = [piece["function"] for delta in deltas for piece in delta.get("tool_calls") or []]
    assert [piece["name"] for piece in pieces if piece.get("name")] == ["forecast"]
    arguments = json.loads("".join(piece.get("arguments") or "" for piece in pieces))
    assert arguments in ({"kind": "sun"}, {"kind": "rain"})


@pytest.mark.parametrize("case", CASES)
def test_a_call_that_must_be_made_is_made(client: httpx.Client, case: str) -> None:
    path, body = CASES[case]
    answer = client.post(path, json={"model": MODEL, "temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    ((name, arguments),) = calls_of(answer.json())
    assert name in (["forecast"] if case == "chat named" else ["report", "forecast"])
    assert arguments in ({"kind": "sun"}, {"kind": "rain"})
