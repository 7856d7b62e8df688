"""Whatever JSON a tool server sends, it becomes a bounded list of tools or a result, or an error of its own."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from adapters.mcp.servers import MAX_TOOLS, McpToolServers
from adapters.mcp.session import HANDSHAKE, MODERN, RpcFailed, Session, TransportLost, result_of
from application.mcp_settings import ToolServerSettings
from domain.errors import DomainError

MOST = 100

texts = st.text(max_size=12)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)
KEYS = ("tools", "name", "inputSchema", "description", "nextCursor", "content", "type", "text", "data", "isError")
near = st.recursive(
    leaves | st.sampled_from(["text", "image", "resource", "a", "complete"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=24,
)


class Scripted:
    """A Transport that answers with these results, one after the other."""

    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers

    async def request(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        return self._answers.pop(0) if self._answers else None

    async def notify(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        return None

    async def close(self) -> None:
        return None


class ScriptedServers(McpToolServers):
    def __init__(self, answers: list[Any]) -> None:
        super().__init__({"one": ToolServerSettings(command="unused")}, MOST)
        self._answers = answers

    async def _connected(self, connection: Any) -> Scripted:
        return Scripted(self._answers)


GREETING = {"supportedVersions": [MODERN]}


@given(values)
def test_a_response_is_a_result_or_an_error(answer: Any) -> None:
    try:
        result_of(answer)
    except (RpcFailed, TransportLost):
        return
    assert "result" in answer


@given(st.lists(near | values, max_size=3))
def test_a_list_of_tools_is_bounded_and_its_names_are_plain(pages: list[Any]) -> None:
    async def run() -> None:
        servers = ScriptedServers([GREETING, *pages])
        try:
            tools = await servers.tools("one")
        except DomainError:
            return
        assert len(tools) <= MAX_TOOLS
        assert all(tool.name.isascii() and tool.name.isprintable() and tool.name for tool in tools)

    asyncio.run(run())


@given(near | values)
def test_a_result_is_bounded(found: Any) -> None:
    async def run() -> None:
        tool = {"tools": [{"name": "a", "inputSchema": {}}]}
        result = await ScriptedServers([GREETING, tool, found]).call("one", "a", {})
        texts = [part.text for part in result.parts]
        assert sum(len(text.encode()) for text in texts) <= MOST + 64 + 40 * len(texts)
        json.dumps(result.structured)

    asyncio.run(run())


@given(st.lists(values, max_size=2))
def test_the_era_is_found_out_or_the_server_is_refused(answers: list[Any]) -> None:
    async def run() -> None:
        session = Session(Scripted(answers))
        try:
            await session.open()
        except (RpcFailed, TransportLost):
            return
        assert session.protocol in (MODERN, HANDSHAKE) or len(session.protocol) <= 32

    asyncio.run(run())
