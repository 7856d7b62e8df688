"""The era of a tool server that answers late."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from adapters.mcp import session
from adapters.mcp.session import HANDSHAKE, MODERN, RpcFailed, Session


class Slow:
    """A server that leaves its first request unanswered, as one that is still starting does."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.asked: list[str] = []
        self._answers = answers

    async def request(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        self.asked.append(message["method"])
        if len(self.asked) == 1:
            await asyncio.Event().wait()
        if message["method"] not in self._answers:
            raise RpcFailed(-32601, "unknown")
        return self._answers[message["method"]]

    async def notify(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self.asked.append(message["method"])

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PROBE_TIMEOUT_S", 0)


def test_a_modern_server_that_starts_slowly_is_asked_again() -> None:
    server = Slow({"server/discover": {"supportedVersions": [MODERN]}})
    opened = Session(server)
    asyncio.run(opened.open())
    assert opened.protocol == MODERN
    assert server.asked == ["server/discover", "initialize", "server/discover"]


def test_an_older_server_that_leaves_the_probe_unanswered_is_greeted() -> None:
    server = Slow({"initialize": {"protocolVersion": HANDSHAKE}})
    opened = Session(server)
    asyncio.run(opened.open())
    assert opened.protocol == HANDSHAKE
    assert server.asked == ["server/discover", "initialize", "notifications/initialized"]


def test_a_server_of_neither_era_fails() -> None:
    server = Slow({"server/discover": {"supportedVersions": ["2030-01-01"]}})
    with pytest.raises(RpcFailed):
        asyncio.run(Session(server).open())
