"""A tool call that clients send back re-serialised, reordered or edited, over a socket in three dialects: the next turn
computes its new tokens only."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.fake.options import HYBRID, FakeOptions, reply_with
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.stores.kill_documents import open_documents

GENERATED = '{ "zeta":   "' + "long " * 60 + '",\t"alpha" : 10.0, "cmd":"cd /work && ls  " }'
EDITED = {"alpha": 10, "cmd": "ls", "zeta": "long " * 60}
"""As Claude Code edits: reordered, numbers written otherwise, a leading `cd` and trailing blanks removed."""

RESULT = "Two files."
SCHEMA = {"type": "object", "properties": {"zeta": {"type": "string"}}}
OPTIONS = FakeOptions(layout=HYBRID, reply=reply_with(f"\n<call>ls {GENERATED}</call>"))
NEW_TOKENS = len(f"<s>tool\n{RESULT}<e>\n<s>assistant\n") + 8
"""At most, of a next turn: the end of the call's turn, its result and the generation prompt."""

Ask = Callable[[FakeService, dict[str, Any] | None, str], tuple[dict[str, Any], int]]
"""Asks with the call that was answered before, if any, edited; returns the call and the tokens computed."""


def chat_messages(call: dict[str, Any] | None) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "List."}]
    if call is not None:
        function = {"name": "ls", "arguments": json.dumps(EDITED, separators=(",", ":"))}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [{**call, "function": function}]},
            {"role": "tool", "tool_call_id": call["id"], "content": RESULT},
        ]
    return messages


def ask_chat(service: FakeService, call: dict[str, Any] | None, salt: str = "") -> tuple[dict[str, Any], int]:
    messages = chat_messages(call)
    tools = [{"type": "function", "function": {"name": "ls", "parameters": SCHEMA}}]
    body = answered(service, "/v1/chat/completions", messages=messages, tools=tools, cache_salt=salt)
    usage = body["usage"]
    (given,) = body["choices"][0]["message"]["tool_calls"]
    return given, usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]


def ask_messages(service: FakeService, call: dict[str, Any] | None, salt: str = "") -> tuple[dict[str, Any], int]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "List."}]
    if call is not None:
        messages += [
            {"role": "assistant", "content": [{**call, "input": EDITED}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": RESULT}]},
        ]
    tools = [{"name": "ls", "input_schema": SCHEMA}]
    body = answered(service, "/v1/messages", messages=messages, tools=tools, max_tokens=2000, cache_salt=salt)
    (given,) = body["content"]
    return given, body["usage"]["input_tokens"] + body["usage"]["cache_creation_input_tokens"]


def ask_responses(
    service: FakeService, call: dict[str, Any] | None, salt: str = "", **fields: Any
) -> tuple[dict[str, Any], int]:
    items: list[dict[str, Any]] = [{"role": "user", "content": "List."}]
    if call is not None:
        edited = {**call, "arguments": json.dumps(EDITED)}
        items += [edited, {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}]
    tools = [{"type": "function", "name": "ls", "parameters": SCHEMA, "strict": False}]
    body = answered(service, "/v1/responses", input=items, tools=tools, cache_salt=salt, **fields)
    (given,) = body["output"]
    return given, body["usage"]["input_tokens"] - body["usage"]["input_tokens_details"]["cached_tokens"]


def answered(service: FakeService, path: str, **body: Any) -> dict[str, Any]:
    response = service.client.post(path, json=body)
    assert response.status_code == 200, response.text
    told: dict[str, Any] = response.json()
    return told


ASKS = pytest.mark.parametrize("ask", [ask_chat, ask_messages, ask_responses])


@ASKS
def test_the_next_turn_computes_its_new_tokens_only(ask: Ask) -> None:
    with fake_service(OPTIONS, reuses=True) as service:
        call, _ = ask(service, None, "")
        _, num_computed = ask(service, call, "")
    assert num_computed <= NEW_TOKENS


def test_nobody_gets_what_was_generated_for_another() -> None:
    with fake_service(OPTIONS, reuses=True) as service:
        call, _ = ask_chat(service, None, "theirs")
        ask_chat(service, None, "mine")
        _, num_computed = ask_chat(service, call, "mine")
    assert num_computed > NEW_TOKENS + len(json.dumps(EDITED)) // 2


def test_of_a_response_that_is_not_stored_nothing_reaches_the_disk(tmp_path: Path) -> None:
    """Codex stores none: its calls are rendered as they were written all the same, as long as the server runs."""
    with fake_service(OPTIONS, reuses=True, documents=open_documents(tmp_path)) as service:
        call, _ = ask_responses(service, None, store=False)
        _, num_computed = ask_responses(service, call, store=False)
        assert num_computed <= NEW_TOKENS
        assert service.client.get("/v1/cache/stats").json()["documents"]["documents"] == 2
        with_calls = [path for path in tmp_path.iterdir() if b"cd /work" in path.read_bytes()]
        assert not with_calls
