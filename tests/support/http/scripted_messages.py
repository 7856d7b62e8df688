"""Messages of a scripted model that calls tools of servers in memory."""

import json
from collections.abc import Mapping
from typing import Any

import httpx

from tests.support.http.servers.fake_service import FakeService

TIME = {"type": "url", "name": "time"}
TOOLSET = {"type": "mcp_toolset", "mcp_server_name": "time"}
OFF = {"enabled": False}
MINE = {"name": "mine", "input_schema": {"type": "object"}}
ASKED = {"role": "user", "content": "What time is it?"}


def post(service: FakeService, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    return service.client.post(path, json={"max_tokens": 900, "messages": [ASKED], "mcp_servers": [TIME], **fields})


def ask(service: FakeService, **fields: Any) -> dict[str, Any]:
    response = post(service, **fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(service: FakeService, **fields: Any) -> str:
    """The path with which the message of the refusal begins."""
    response = post(service, **fields)
    assert response.status_code == 400, response.text
    return str(response.json()["error"]["message"]).split(" ")[0].rstrip(":")


def kinds(answer: Mapping[str, Any]) -> list[str]:
    return [block["type"] for block in answer["content"]]


def events_of(service: FakeService, **fields: Any) -> list[dict[str, Any]]:
    body = {"max_tokens": 900, "messages": [ASKED], "mcp_servers": [TIME], "stream": True, **fields}
    with service.client.stream("POST", "/v1/messages", json=body) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def computed(usage: Mapping[str, Any]) -> int:
    return int(usage["input_tokens"])


def follow_up(answer: Mapping[str, Any], *more: Mapping[str, Any]) -> list[Any]:
    return [ASKED, {"role": "assistant", "content": answer["content"]}, *more]


def from_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message as a client puts it together."""
    content: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    for event in events:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(content)
                content.append(block)
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}:
                content[-1]["text"] += text
            case {"type": "content_block_delta", "index": index, "delta": {"partial_json": piece}}:
                inputs[index] = inputs.get(index, "") + piece
            case _:
                pass
    for index, text in inputs.items():
        content[index]["input"] = json.loads(text or "{}")
    return {"content": content}
