"""Responses of a scripted model that calls tools of servers in memory."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from adapters.fake.options import ATTENTION, FakeOptions
from domain.id_row import IdRow
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.mcp.fake_servers import Answer, FakeToolServers, echo
from tests.support.patience import PATIENCE_S

NEVER = {"type": "mcp", "server_label": "time", "require_approval": "never"}
FREE = {"time": False, "files": False}
"""The operator's rule: no approval."""


def call(name: str, arguments: str = "{}") -> str:
    return f"\n<call>{name} {arguments}</call>"


class Script:
    """A model that writes these answers, one for each prompt. `prompts`: what it was asked."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)
        self.prompts: list[tuple[int, ...]] = []

    def __call__(self, prompt_ids: IdRow) -> Sequence[int]:
        ids = tuple(prompt_ids)
        if not self.prompts or self.prompts[-1] != ids:
            self.prompts.append(ids)
        return tuple(self._answers[min(len(self.prompts), len(self._answers)) - 1].encode())

    def text(self, at: int) -> str:
        return bytes(id for id in self.prompts[at] if id < 256).decode()


@contextmanager
def serving(
    script: Callable[[IdRow], Sequence[int]],
    answer: Answer = echo,
    *,
    layout: Any = ATTENTION,
    names: Mapping[str, Sequence[str]] | None = None,
    **options: Any,
) -> Iterator[tuple[FakeService, FakeToolServers]]:
    servers = FakeToolServers(names or {"time": ["now", "convert"], "files": ["read"]}, answer)
    settings = {"approvals": FREE, "reuses": True, **options}
    with fake_service(FakeOptions(layout=layout, reply=script), tool_servers=servers, **settings) as service:
        yield service, servers


def ask(service: FakeService, **fields: Any) -> dict[str, Any]:
    body = {"input": "What time is it?", "tools": [NEVER], **fields}
    response = service.client.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(service: FakeService, **fields: Any) -> str:
    response = service.client.post("/v1/responses", json={"input": "Hi", **fields})
    assert response.status_code == 400, response.text
    return str(response.json()["error"]["param"])


def kinds(answer: Mapping[str, Any]) -> list[str]:
    return [item["type"] for item in answer["output"]]


def events_of(service: FakeService, **fields: Any) -> list[dict[str, Any]]:
    body = {"input": "What time is it?", "tools": [NEVER], "stream": True, **fields}
    with service.client.stream("POST", "/v1/responses", json=body) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


THREE = (call("time__now"), call("time__convert", '{ "to":  "UTC" }'), "It is noon.")


class Gate:
    """Holds what awaits it on a server's event loop, until `open` from any thread."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.has_arrived = threading.Event()

    async def __call__(self, *_about: object) -> None:
        self._loop = asyncio.get_running_loop()
        self.has_arrived.set()
        await self._event.wait()

    def open(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._event.set)


@contextmanager
def stream_of(service: FakeService, **fields: Any) -> Iterator[Iterator[dict[str, Any]]]:
    """The events of a response as they arrive. The client leaves with the block."""
    body = {"input": "What time is it?", "tools": [NEVER], "stream": True, **fields}
    with (
        httpx.Client(base_url=service.base_url, timeout=PATIENCE_S) as client,
        client.stream("POST", "/v1/responses", json=body) as response,
    ):
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        yield (json.loads(line.removeprefix("data: ")) for line in lines)
