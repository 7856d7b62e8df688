"""Eight answers over HTTP, in three dialects: chats, calls of tools, answers in a form; seeded and greedy.

Each is read to its end on a thread of its own, an event at a time, and folded into what a client has of it.
"""

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.support.patience import PATIENCE_S

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
WORDS: dict[str, Any] = {"type": "array", "items": {"enum": ["sun", "rain", "snow"]}, "minItems": 24, "maxItems": 24}
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"days": WORDS, "kind": {"enum": ["long", "short"]}},
    "required": ["days", "kind"],
    "additionalProperties": False,
}
TOOL = {"name": "report", "description": "what the weather was", "parameters": FORM}
JSON_SCHEMA = {"name": "weather", "strict": True, "schema": FORM}
DRAWN = {"temperature": 1.0}


def chat(asked: str, **more: Any) -> tuple[str, dict[str, Any]]:
    usage = {"stream_options": {"include_usage": True}}
    return CHAT, {"messages": [{"role": "user", "content": asked}], "reasoning_effort": "none", **usage, **more}


def messages(asked: str, **more: Any) -> tuple[str, dict[str, Any]]:
    told = {"messages": [{"role": "user", "content": asked}], "thinking": {"type": "disabled"}}
    return MESSAGES, {"max_tokens": 300, "temperature": 0, **told, **more}


def responses(asked: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return RESPONSES, {"input": asked, "reasoning": {"effort": "none"}, "store": False, **more}


STREAMS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "chat": chat("Tell of the sea, at length. " * 9, temperature=0, max_tokens=400, ignore_eos=True),
    "drawn": chat("Tell of the hills. " * 4, seed=3, max_tokens=300, ignore_eos=True, **DRAWN),
    "choices": chat("What then? " * 8, seed=7, n=2, max_tokens=60, **DRAWN),
    "called": chat(
        "How was it?",
        seed=11,
        tools=[{"type": "function", "function": TOOL}],
        tool_choice={"type": "function", "function": {"name": "report"}},
        **DRAWN,
    ),
    "formed": chat(
        "Say how it was. " * 6,
        seed=13,
        response_format={"type": "json_schema", "json_schema": JSON_SCHEMA},
        **DRAWN,
    ),
    "message": messages("Write to me about the lake. " * 5, max_tokens=140),
    "message_called": messages(
        "And how was it there?",
        tools=[{"name": "report", "description": "", "input_schema": FORM}],
        tool_choice={"type": "tool", "name": "report"},
    ),
    "response_formed": responses(
        "How was it, in a form? " * 3, seed=17, text={"format": {"type": "json_schema", **JSON_SCHEMA}}, **DRAWN
    ),
}


@dataclass
class Answer:
    """What a client has of it. `texts`, `ends`: by choice. `calls`: names, and arguments as they came. `problems`:
    whatever says that something went wrong."""

    texts: dict[int, str] = field(default_factory=dict[int, str])
    calls: dict[int, str] = field(default_factory=dict[int, str])
    ends: dict[int, str] = field(default_factory=dict[int, str])
    num_tokens: int = 0
    problems: list[str] = field(default_factory=list[str])

    def write(self, text: str, choice: int = 0) -> None:
        self.texts[choice] = self.texts.get(choice, "") + text

    def call(self, index: int, text: str) -> None:
        self.calls[index] = self.calls.get(index, "") + text


def _chat(answer: Answer, told: dict[str, Any]) -> None:
    for choice in told.get("choices", ()):
        delta, index = choice["delta"], choice["index"]
        answer.write((delta.get("reasoning_content") or "") + (delta.get("content") or ""), index)
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            answer.call(call["index"], (function.get("name") or "") + (function.get("arguments") or ""))
        if choice["finish_reason"]:
            answer.ends[index] = choice["finish_reason"]
    if told.get("usage"):
        answer.num_tokens = told["usage"]["completion_tokens"]
    if "error" in told:
        answer.problems.append(json.dumps(told))


def _messages(answer: Answer, told: dict[str, Any]) -> None:
    """Blocks come one after the other; what keeps a stream alive while nothing comes may open an empty one before."""
    match told["type"]:
        case "content_block_start" if told["content_block"]["type"] == "tool_use":
            answer.call(len(answer.calls), told["content_block"]["name"])
        case "content_block_delta":
            delta = told["delta"]
            answer.write(delta.get("text", "") + delta.get("thinking", ""))
            if "partial_json" in delta:
                answer.call(len(answer.calls) - 1, delta["partial_json"])
        case "message_delta":
            answer.ends[0], answer.num_tokens = told["delta"]["stop_reason"], told["usage"]["output_tokens"]
        case "error":
            answer.problems.append(json.dumps(told))
        case _:
            pass


def _responses(answer: Answer, told: dict[str, Any]) -> None:
    match told["type"]:
        case "response.output_text.delta":
            answer.write(told["delta"])
        case "response.completed" | "response.incomplete":
            answer.ends[0], answer.num_tokens = told["response"]["status"], told["response"]["usage"]["output_tokens"]
        case "error" | "response.failed":
            answer.problems.append(json.dumps(told))
        case _:
            pass


_FOLDS = {CHAT: _chat, MESSAGES: _messages, RESPONSES: _responses}


def events(url: str, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Those of one streamed answer, as they come."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", path, json.dumps({**body, "stream": True}), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise AssertionError(f"{path}: {response.status} {response.read(2000)!r}")
        while line := response.readline():
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
    finally:
        connection.close()


def read_all(url: str, salt: str, told: Callable[[], object] = lambda: None) -> dict[str, Answer]:
    """All at once, to their ends. `told`: called at each event that came, on the thread of whoever it came to."""
    answers = {name: Answer() for name in STREAMS}

    def read(name: str) -> None:
        path, body = STREAMS[name]
        try:
            for event in events(url, path, {**body, "cache_salt": salt}):
                told()
                _FOLDS[path](answers[name], event)
        except Exception as error:
            answers[name].problems.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=read, args=(name,), name=f"reads-{name}") for name in STREAMS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
        assert not thread.is_alive(), f"{thread.name} has not come to an end"
    return answers
