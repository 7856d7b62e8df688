"""Tool servers over HTTP: listed, called and restarted by admins, each key within its servers."""

import asyncio
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from adapters.fake.environment import FakeClock
from application.events import ToolCalled
from application.ports.tool_servers import ResultPart, ToolResult
from application.settings import McpSettings, ToolServerSettings
from domain.client import Client
from domain.errors import ToolCallFailed
from interfaces.composition.tools import build_tool_servers
from tests.support.http.servers.fake_service import FakeService, fake_service, headers, keyed_service
from tests.support.http.servers.live_service import live_service, settings_of
from tests.support.mcp.fake_servers import FakeToolServers
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.recording import RecordingEvents

ROOT = headers("root")
KEYS = (
    Client("root", admin=True),
    Client("half", admin=True, mcp=frozenset({"time"})),
    Client("user", mcp=frozenset({"time"})),
)


def servers() -> FakeToolServers:
    return FakeToolServers({"time": ["now", "convert"], "git": ["log"]})


def execute(service: FakeService, status: int = 200, key: str = "root", **order: object) -> Any:
    answer = service.client.post("/v1/mcp/execute", json=order, headers=headers(key))
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else answer.json()["error"]


def calls(service: FakeService) -> list[tuple[str, str, str | None]]:
    return [(one.server, one.tool, one.error_code) for one in service.events.events if isinstance(one, ToolCalled)]


def test_tools_are_listed_by_full_name_and_a_dead_server_by_its_error() -> None:
    tools = servers()
    tools.dead.add("git")
    with keyed_service(*KEYS, tool_servers=tools) as service:
        found = service.client.get("/v1/mcp/tools", headers=ROOT).json()
        assert [one["name"] for one in found["tools"]] == ["time__convert", "time__now"]
        assert found["tools"][0] == {
            "name": "time__convert",
            "server": "time",
            "description": "Does convert.",
            "input_schema": {"type": "object", "properties": {}},
        }
        assert [(one["name"], one["tools"], one["error"] != "") for one in found["servers"]] == [
            ("time", 2, False),
            ("git", 0, True),
        ]
        listed = service.client.get("/v1/mcp/servers", headers=ROOT).json()["servers"]
        assert [(one["name"], one["state"], one["error"]) for one in listed] == [
            ("time", "ready", ""),
            ("git", "waiting", "it is dead"),
        ]


@pytest.mark.parametrize("field", ["tool", "tool_name"])
def test_a_call_has_its_result_and_is_told(field: str) -> None:
    tools = servers()
    with keyed_service(*KEYS, tool_servers=tools) as service:
        found = execute(service, **{field: "time__now", "arguments": {"zone": "UTC"}})
        assert (found["content"], found["is_error"]) == ("now got {'zone': 'UTC'}", False)
        assert execute(service, **{field: "time__now"})["content"] == "now got {}"
        assert calls(service) == [("time", "now", None)] * 2


def test_failures_of_tools_are_normal_answers() -> None:
    async def answer(tool: str, _arguments: Mapping[str, Any]) -> ToolResult:
        if tool == "now":
            return ToolResult([ResultPart("no such zone")], is_error=True)
        raise ToolCallFailed("refused", number=-32602)

    tools = FakeToolServers({"time": ["now", "convert"], "git": ["log"]}, answer)
    tools.dead.add("git")
    with keyed_service(*KEYS, tool_servers=tools) as service:
        for name, why in (("time__now", "no such zone"), ("time__convert", "refused"), ("git__log", "it is dead")):
            found = execute(service, tool=name)
            assert found["is_error"]
            assert why in found["error_message"]
        assert [code for _, _, code in calls(service)] == ["tool_error", "tool_call_failed", "tool_server_unavailable"]


def test_requests_that_name_no_tool_are_refused() -> None:
    with keyed_service(*KEYS, tool_servers=servers()) as service:
        assert execute(service, 400)["param"] == "tool"
        assert execute(service, 400, tool="time__now", tool_name="git__log")["param"] == "tool"
        assert execute(service, 400, tool="time__now", command="rm")["code"] == "invalid_request"
        assert execute(service, 404, tool="none__now")["code"] == "tool_not_found"
        assert execute(service, 404, tool="time__none")["code"] == "tool_not_found"
        assert calls(service) == []  # names that a client invents become no attribute of a metric


def test_keys_reach_only_their_servers() -> None:
    tools = servers()
    with keyed_service(*KEYS, tool_servers=tools) as service:
        assert execute(service, key="half", tool="time__now")["is_error"] is False
        assert execute(service, 403, key="half", tool="git__log")["code"] == "not_allowed"
        assert execute(service, 403, key="half", tool="none__log")["code"] == "not_allowed"
        assert execute(service, 403, key="user", tool="time__now")["code"] == "not_allowed"
        for path, part in (("/v1/mcp/servers", "servers"), ("/v1/mcp/tools", "servers")):
            found = service.client.get(path, headers=headers("half")).json()[part]
            assert [one["name"] for one in found] == ["time"]
        assert service.client.get("/v1/mcp/servers", headers=headers("user")).status_code == 403
        restart = "/v1/mcp/servers/git/restart"
        assert service.client.post(restart, headers=headers("half"), json={}).status_code == 403
        assert service.client.post(restart, headers=ROOT, json={}).json()["name"] == "git"
        assert service.client.post("/v1/mcp/servers/none/restart", headers=ROOT, json={}).status_code == 404
        assert tools.restarted == ["git"]
        assert [server for server, _, _ in tools.calls] == ["time"]


def test_a_key_lists_the_tools_of_its_servers_and_starts_only_these() -> None:
    tools = servers()
    with keyed_service(*KEYS, Client("none"), tool_servers=tools, approvals={"time": False}) as service:

        def listed(key: str, query: str = "") -> Any:
            return service.client.get(f"/v1/mcp/tools{query}", headers=headers(key)).json()

        assert listed("none") == listed("user", "?server=git") == {"tools": [], "servers": []}
        assert tools.listed == []
        found = listed("user")
        assert [one["name"] for one in found["tools"]] == ["time__convert", "time__now"]
        own = {"name": "time", "tools": 2, "error": "", "listed": True, "approval": "never"}
        assert found["servers"] == [own]
        assert [one["approval"] for one in listed("root", "?server=git")["servers"]] == ["always"]
        assert tools.listed == ["time", "git"]


def test_a_list_that_starts_nothing_has_the_tools_of_servers_that_run() -> None:
    tools = servers()
    tools.idle.add("git")
    with keyed_service(*KEYS, tool_servers=tools) as service:
        found = service.client.get("/v1/mcp/tools?start=false", headers=ROOT).json()
        assert [one["name"] for one in found["tools"]] == ["time__convert", "time__now"]
        assert [(one["name"], one["listed"]) for one in found["servers"]] == [("time", True), ("git", False)]
        assert tools.listed == ["time"]


def test_without_servers_nothing_is_listed_and_a_call_says_so() -> None:
    with fake_service() as service:
        assert service.client.get("/v1/mcp/servers").json() == {"servers": []}
        assert service.client.get("/v1/mcp/tools").json() == {"tools": [], "servers": []}
        answer = service.client.post("/v1/mcp/execute", json={"tool": "time__now"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_tool_servers")
        assert "retry-after" not in answer.headers
        assert service.client.post("/v1/mcp/servers/time/restart", json={}).status_code == 503


def test_a_client_that_leaves_cancels_its_call() -> None:
    async def answer(_tool: str, _arguments: Mapping[str, Any]) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    tools = FakeToolServers({"time": ["now"]}, answer)
    body = b'{"tool":"time__now"}'
    with fake_service(tool_servers=tools) as service:
        address = urlsplit(service.base_url)
        with socket.create_connection((address.hostname, address.port), PATIENCE_S) as client:
            head = f"POST /v1/mcp/execute HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            service.wait_until(lambda: bool(tools.calls), "the call to begin")
        service.wait_until(lambda: tools.cancelled == [("time", "now")], "the call to be cancelled")
        service.wait_until(lambda: calls(service) == [("time", "now", "cancelled")], "the event")


def test_a_server_closes_its_tool_servers_when_it_stops() -> None:
    tools = FakeToolServers({"time": ["now"]})
    with live_service(settings_of(), tool_servers=tools) as live, httpx.Client(base_url=live.base_url) as client:
        assert [one["name"] for one in client.get("/v1/mcp/tools").json()["tools"]] == ["time__now"]
        assert not tools.is_closed
    assert tools.is_closed


def test_the_client_is_made_only_where_a_server_is_enabled() -> None:
    events, clock = RecordingEvents(), FakeClock()
    left_out = ToolServerSettings("never-run", enabled=False)
    assert build_tool_servers(McpSettings(), events, clock) is None
    assert build_tool_servers(McpSettings({"a": left_out}), events, clock) is None
