"""Tool servers over streamable HTTP: answers as JSON and as events, sessions, and services that misbehave."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from adapters.mcp.servers import McpToolServers
from application.mcp_settings import ToolServerSettings
from application.ports.tool_servers import ServerState
from domain.errors import ToolServerUnavailable
from tests.support.mcp.fault_server import FaultServer

MOST = 4096
HALF = "a\ud83db"
"""With half of a surrogate pair, which is no character."""


class Service:
    """A FaultServer over HTTP. `style`: json, events, or how it misbehaves. `seen`: the headers of each request."""

    def __init__(self, era: str, style: str) -> None:
        self.era, self.style = era, style
        self.faults = FaultServer(era, set())
        self.seen: list[dict[str, str]] = []
        self.session = "first" if era == "older" else ""
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                service.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/mcp"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        message = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        self.seen.append({name.lower(): value for name, value in handler.headers.items()})
        found = self.faults.answer(message)
        is_call = message["method"] == "tools/call"
        begins = message["method"] in ("initialize", "server/discover")
        if self.session and not begins and handler.headers.get("mcp-session-id") != self.session:
            return self.send(handler, 404, "text/plain", b"no such session")
        if self.style == "redirect" and is_call:
            return self.send(handler, 307, "text/plain", b"", {"location": "http://127.0.0.1:1/elsewhere"})
        if self.style == "html" and is_call:
            return self.send(handler, 502, "text/html", b"<h1>Bad gateway</h1>")
        if found is None:
            return self.send(handler, 202, "text/plain", b"")
        body = json.dumps(found).encode()
        if self.style == "raw" and is_call:
            body = json.dumps(found, ensure_ascii=False).encode(errors="surrogatepass")
        if self.style == "garbage" and is_call:
            body = b"\x00\xff{" * 100
        if self.style == "events":
            other = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}).encode()
            body = b": hello\r\n\r\nevent: message\r\ndata: " + other + b"\r\n\r\ndata: " + body + b"\r\n\r\n"
            return self.send(handler, 200, "text/event-stream", body)
        status = 200 if "result" in found else 400
        return self.send(handler, status, "application/json", body)

    def send(
        self, handler: BaseHTTPRequestHandler, status: int, kind: str, body: bytes, more: dict[str, str] | None = None
    ) -> None:
        handler.send_response(status)
        headers = {"content-type": kind, "content-length": str(len(body)), **(more or {})}
        if self.session:
            headers["mcp-session-id"] = self.session
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        with suppress(OSError):  # a client that has read enough leaves
            handler.wfile.write(body)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve() -> Iterator[Any]:
    services = list[Service]()

    def start(era: str, style: str = "json") -> Service:
        services.append(Service(era, style))
        return services[-1]

    yield start
    for service in services:
        service.close()


def using(service: Service, work: Any, **settings: Any) -> None:
    async def run() -> None:
        one = ToolServerSettings(url=service.url, headers={"authorization": "Bearer ${TOKEN}"}, **settings)
        servers = McpToolServers({"one": one}, MOST, environment={"TOKEN": "t0ken"})
        try:
            await work(servers)
        finally:
            await servers.close()

    asyncio.run(run())


@pytest.mark.parametrize("era", ["modern", "older"])
@pytest.mark.parametrize("style", ["json", "events"])
def test_both_eras_and_both_forms_of_an_answer(serve: Any, era: str, style: str) -> None:
    service = serve(era, style)

    async def work(servers: McpToolServers) -> None:
        assert "echo" in [tool.name for tool in await servers.tools("one")]
        result = await servers.call("one", "echo", {"text": "hello"})
        assert result.parts[0].text == "hello"

    using(service, work)
    last = service.seen[-1]
    assert last["authorization"] == "Bearer t0ken"
    assert {"application/json", "text/event-stream"} <= {kind.strip() for kind in last["accept"].split(",")}
    if era == "modern":
        assert (last["mcp-method"], last["mcp-name"]) == ("tools/call", "echo")
        assert last["mcp-protocol-version"] == "2026-07-28"
    else:
        assert (last["mcp-session-id"], last["mcp-protocol-version"]) == ("first", "2025-06-18")


def test_a_session_that_the_service_forgot_is_begun_anew(serve: Any) -> None:
    service = serve("older")

    async def work(servers: McpToolServers) -> None:
        await servers.tools("one")
        service.session = "second"
        with pytest.raises(ToolServerUnavailable, match="404"):
            await servers.call("one", "echo", {})
        await servers.restart("one")
        assert (await servers.call("one", "echo", {"text": "again"})).parts[0].text == "again"

    using(service, work)


@pytest.mark.parametrize("style", ["json", "events", "raw"])
def test_halves_of_characters_in_a_result_become_marks(serve: Any, style: str) -> None:
    async def work(servers: McpToolServers) -> None:
        if style == "raw":
            with pytest.raises(ToolServerUnavailable, match="something else than JSON"):
                await servers.call("one", "echo", {"text": HALF})
            return
        assert (await servers.call("one", "echo", {"text": HALF})).parts[0].text == "a\ufffdb"

    using(serve("modern", style), work)


@pytest.mark.parametrize(
    ("style", "tool", "match"),
    [
        ("redirect", "echo", "answered 307"),
        ("html", "echo", "answered 502"),
        ("garbage", "echo", "something else than JSON"),
        ("json", "flood", "more than"),
        ("events", "flood", "more than"),
    ],
)
def test_each_misbehaviour_is_an_error_that_says_so(serve: Any, style: str, tool: str, match: str) -> None:
    service = serve("modern", style)

    async def work(servers: McpToolServers) -> None:
        with pytest.raises(ToolServerUnavailable, match=match):
            await servers.call("one", tool, {})
        (status,) = servers.status()
        assert status.state is ServerState.WAITING

    using(service, work)


def test_a_service_that_is_not_there_is_told(serve: Any) -> None:
    service = serve("modern")
    service.close()

    async def work(servers: McpToolServers) -> None:
        with pytest.raises(ToolServerUnavailable, match="ConnectError"):
            await servers.tools("one")

    using(service, work)
