"""Calls of servers' tools by the text of their arguments. The loop itself is tested in tests/integration/http/tools."""

import asyncio
from typing import cast

import pytest

from application.use_cases.generate import Generate
from application.use_cases.tool_loop import ToolLoop
from domain.request.server_calls import CallFault, OfferedTool
from tests.support.mcp.fake_servers import FakeToolServers

GENERATE = cast(Generate, None)
"""Calls need none."""


@pytest.mark.parametrize("arguments", ["[1]", "{", "1", '{"a": NaN}', "[" * 100_000])
def test_arguments_that_are_no_json_object_are_an_error_and_do_not_reach_the_server(arguments: str) -> None:
    servers = FakeToolServers({"time": ["now"]})
    outcome = asyncio.run(ToolLoop(GENERATE, servers, {}).call(OfferedTool("time", "now"), arguments))
    assert (outcome.fault, outcome.code) == (CallFault.PROTOCOL, -32602)
    assert servers.calls == []


def test_a_tool_that_is_not_there_and_a_dead_server_are_outcomes() -> None:
    loop = ToolLoop(GENERATE, servers := FakeToolServers({"time": ["now"]}), {})
    assert asyncio.run(loop.call(OfferedTool("time", "no"), "")).fault is CallFault.PROTOCOL
    servers.dead.add("time")
    assert asyncio.run(loop.call(OfferedTool("time", "now"), "")).fault is CallFault.CONNECTION
