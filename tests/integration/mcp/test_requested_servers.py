"""Tool servers that requests name: which URLs and headers, and where the connection goes."""

import asyncio
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.fake.environment import FakeClock
from adapters.mcp.http import HttpTransport
from adapters.mcp.requested import MAX_HEADER_CHARS, MAX_URL_CHARS, requested_server
from adapters.mcp.session import TransportLost
from application.ports.tool_servers import RequestedServer
from application.settings import McpSettings, ToolServerSettings
from domain.errors import InvalidRequest, ToolServerUnavailable
from interfaces.composition.tools import build_tool_loop
from tests.support.processes.servers.certificates import make_certificates, server_context

MOST = 4096
HOSTS = ["tools.example"]


def refused(url: str, headers: Mapping[str, str] | None = None) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as raised:
        requested_server(RequestedServer("one", url, headers or {}), HOSTS, MOST)
    return raised.value


@pytest.mark.parametrize(
    "url",
    [
        "",
        "tools.example",
        "http://tools.example/mcp",
        "https://tools.example:8443/mcp",
        "https://tools.example:99999/mcp",
        "https://user@tools.example/mcp",
        "https://tools.example@127.0.0.1/mcp",
        "https://tools.example\\@127.0.0.1/mcp",
        "https://tools.example/#a",
        "https://tools.exam\nple/mcp",
        "https://tools.example/a b",
        "https://tools\u3002example/mcp",
        "https://[::1/mcp",
        "file:///etc/passwd",
        "https://tools.example/" + "a" * MAX_URL_CHARS,
    ],
)
def test_a_url_of_another_form_is_refused(url: str) -> None:
    error = refused(url)
    assert error.param == "url"
    assert "must be https://HOST/PATH" in error.message


@pytest.mark.parametrize(
    "url", ["https://other.example/mcp", "https://127.0.0.1/mcp", "https://[::1]/", "https://a.tools.example/"]
)
def test_a_host_that_is_not_listed_is_refused(url: str) -> None:
    error = refused(url)
    assert error.param == "url"
    assert "mcp.request_hosts does not list" in error.message


@pytest.mark.parametrize(
    "headers",
    [
        {"x": "${HOME}"},
        {"Host": "other.example"},
        {"mcp-session-id": "1"},
        {"x": "a\r\ny: b"},
        {"a b": "c"},
        {"x": "caf\u00e9"},
        {"x": "a" * (MAX_HEADER_CHARS + 1)},
    ],
)
def test_headers_that_read_a_variable_or_change_the_message_are_refused(headers: Mapping[str, str]) -> None:
    assert refused("https://tools.example/", headers).param == "headers"


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["10.0.0.1"], ["93.184.216.34", "169.254.169.254"], ["::1"], []])
def test_a_name_that_leads_to_this_network_is_not_connected_to(addresses: list[str]) -> None:
    asked: list[str] = []

    async def resolve(host: str) -> list[str]:
        asked.append(host)
        return addresses

    async def run() -> None:
        servers = requested_server(RequestedServer("one", "https://tools.example./"), HOSTS, MOST, resolve)
        with pytest.raises(ToolServerUnavailable, match="not public"):
            await servers.tools("one")
        await servers.close()

    asyncio.run(run())
    assert asked == ["tools.example"]


def test_a_name_without_an_address_is_told() -> None:
    async def resolve(host: str) -> list[str]:
        raise OSError

    async def run() -> None:
        servers = requested_server(RequestedServer("one", "https://tools.example/"), HOSTS, MOST, resolve)
        with pytest.raises(ToolServerUnavailable, match="no address"):
            await servers.tools("one")
        await servers.close()

    asyncio.run(run())


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Writes nothing."""


def test_the_connection_goes_to_the_address_and_the_certificate_must_be_the_hosts(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path, {"tools": "DNS:tools.example"})
    context, names = server_context(certificates, "tools"), list[str | None]()
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        url = f"https://tools.example:{server.server_port}/mcp"
        trusting = ssl.create_default_context(cafile=str(certificates / "authority.crt"))

        async def notified(url: str, verify: Any = True) -> None:
            transport = HttpTransport(url, {}, MOST, "127.0.0.1")
            if verify is not True:
                await transport._client.aclose()
                transport._client = httpx.AsyncClient(verify=verify)
            try:
                await transport.notify({"method": "notifications/initialized"}, {})
            finally:
                await transport.close()

        asyncio.run(notified(url, trusting))
        with pytest.raises(TransportLost):
            asyncio.run(notified(url))
        with pytest.raises(TransportLost):
            asyncio.run(notified(url.replace("tools.", "other."), trusting))
        server.shutdown()
        thread.join()
    assert names == ["tools.example", "tools.example", "other.example"]


def test_requests_name_servers_only_where_the_operator_lists_hosts() -> None:
    def built(settings: McpSettings) -> Any:
        anything: Any = None
        return build_tool_loop(settings, None, anything, anything, FakeClock())

    assert built(McpSettings()) is None
    loop = built(McpSettings(request_hosts=("tools.example",)))
    assert (loop.names(), loop.takes_requested, loop.asks_requested) == ((), True, True)
    assert built(McpSettings(request_hosts=("tools.example",), request_approval="never")).asks_requested is False


def test_a_header_of_the_configuration_is_of_ascii() -> None:
    with pytest.raises(InvalidRequest, match="headers has a control character, or one beyond ASCII, in x"):
        ToolServerSettings(url="https://tools.example/", headers={"x": "caf\u00e9"})
