"""What other servers' own tests require of an answer, as data: `[check, path, value]`.

A path leads through an answer by names and numbers, `e.N` through the events of a stream; `#` before it is the length
of what it leads to.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

FILE = Path(__file__).parents[2] / "data" / "conformance" / "peer_requirements.json"
PEERS = {"llama.cpp": 65, "vLLM": 39, "Ollama": 21}
"""The number of requirements that are met, of each server."""

MISSING = object()


class Requirement(NamedTuple):
    """`unmet`: why Cairn does otherwise; empty if it meets it."""

    peer: str
    test: str
    method: str
    path: str
    status: list[int]
    checks: list[list[Any]]
    body: Any = None
    unmet: str = ""


def requirements(peer: str) -> list[Requirement]:
    return [Requirement(**row) for row in json.loads(FILE.read_text()) if row["peer"] == peer]


def left_out() -> str:
    """The table in docs/conformance.md of what is not met."""
    unmet = [one for peer in PEERS for one in requirements(peer) if one.unmet]
    rows = [(one.peer, one.test.replace("|", "\\|"), one.unmet) for one in unmet]
    return "".join(f"| {' | '.join(row)} |\n" for row in [("server", "requirement", "why not"), ("---",) * 3, *rows])


def problems(client: httpx.Client, required: Requirement) -> list[str]:
    """What the server misses of a requirement."""
    body = None if required.body is None else _repeated(required.body)
    response = client.request(required.method, required.path, json=body)
    if response.status_code not in required.status:
        return [f"HTTP {response.status_code}: {response.text[:300]}"]
    answer = _answer(response)
    checks = ((name, path, *value) for name, path, *value in required.checks)
    return [f"{name} {path} {value}" for name, path, *value in checks if not _CHECKS[name](answer, path, *value)]


def _repeated(value: Any) -> Any:
    match value:
        case {"repeated": text, "times": times}:
            return text * times
        case dict():
            return {name: _repeated(one) for name, one in value.items()}
        case list():
            return [_repeated(one) for one in value]
    return value


def _answer(response: httpx.Response) -> Any:
    kind = response.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        lines = (line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: "))
        return {"e": [json.loads(line) for line in lines if line != "[DONE]"]}
    if "ndjson" in kind:
        return {"e": [json.loads(line) for line in response.text.splitlines()]}
    return json.loads(response.text or "null")


def _at(answer: Any, path: str) -> Any:
    """MISSING where the path leads nowhere."""
    if path.startswith("#"):
        found = _at(answer, path[1:])
        return len(found) if isinstance(found, list | dict | str) else MISSING
    for step in path.split("."):
        try:
            answer = answer[int(step)] if isinstance(answer, list) else answer[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return MISSING
    return answer


def _values(answer: Any, path: str) -> Iterator[Any]:
    """What the path leads to in each event that has it."""
    found = (_at(event, path) for event in answer["e"])
    return (value for value in found if value is not MISSING)


def _joins(answer: Any, path: str, most: int) -> bool:
    choice = _at(answer, path)
    entries = choice["logprobs"]["content"]
    return "".join(entry["token"] for entry in entries) == choice["message"]["content"] and all(
        entry["logprob"] <= 0
        and bytes(entry["bytes"]).decode() == entry["token"]
        and 0 < len(entry["top_logprobs"]) <= most
        for entry in entries
    )


def _is_message_stream(answer: Any, _path: str) -> bool:
    kinds = [event["type"] for event in answer["e"] if event["type"] != "ping"]
    inner = kinds[2:-3]
    return (
        kinds[:2] == ["message_start", "content_block_start"]
        and set(inner) == {"content_block_delta"}
        and kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    )


def _thinks_first(answer: Any, _path: str) -> bool:
    blocks = [event["content_block"]["type"] for event in answer["e"] if event["type"] == "content_block_start"]
    deltas = [event["delta"]["type"] for event in answer["e"] if event["type"] == "content_block_delta"]
    return blocks == ["thinking", "text"] and "signature_delta" in deltas


_CHECKS: dict[str, Callable[..., bool]] = {
    "eq": lambda answer, path, value: _at(answer, path) == value,
    "in": lambda answer, path, values: _at(answer, path) in values,
    "ge": lambda answer, path, least: (found := _at(answer, path)) is not MISSING and found >= least,
    "exists": lambda answer, path: _at(answer, path) is not MISSING,
    "absent": lambda answer, path: _at(answer, path) is MISSING,
    "none": lambda answer, path: _at(answer, path) in (MISSING, None),
    "truthy": lambda answer, path: (found := _at(answer, path)) is not MISSING and bool(found),
    "type": lambda answer, path, name: type(_at(answer, path)).__name__ == name,
    "contains": lambda answer, path, part: part in _at(answer, path),
    "startswith": lambda answer, path, part: _at(answer, path).startswith(part),
    "regex": lambda answer, path, pattern: re.search(pattern, _at(answer, path)) is not None,
    "eqpath": lambda answer, path, other: _at(answer, path) == _at(answer, other),
    "jsonhas": lambda answer, path, name: name in json.loads(_at(answer, path)),
    "nolater": lambda answer, path: len(list(_values(answer, path))) == 1,
    "same": lambda answer, path: len(set(_values(answer, path))) == 1,
    "joinlogprobs": _joins,
    "anthropicstream": _is_message_stream,
    "anythinking": _thinks_first,
}
