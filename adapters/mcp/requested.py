"""Tool servers that requests name: services on hosts that the operator lists, each for one request.

A client names the URL and a name server the address, so neither may lead to what only this machine can reach: the name
is resolved once, every address it has must be a public one, and the connection goes to that address.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeAlias

from adapters.mcp.servers import McpToolServers
from adapters.mcp.session import TransportLost
from application.mcp_settings import ToolServerSettings
from application.ports.tool_servers import RequestedServer
from domain.errors import require
from domain.host_name import https_host, is_public
from domain.printable import printable

MAX_URL_CHARS, MAX_HEADER_CHARS = 2048, 16 << 10

Resolve: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]


async def resolved(host: str) -> list[str]:
    """Returns the addresses of a host. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, 443, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def requested_server(
    server: RequestedServer, hosts: Collection[str], max_result: int, resolve: Resolve = resolved
) -> McpToolServers:
    """The server, not connected to yet. `hosts`: those that may be named. Raises InvalidRequest."""
    host = https_host(server.url) if len(server.url) <= MAX_URL_CHARS else None
    num_chars = sum(len(name) + len(value) for name, value in server.headers.items())
    require(host is not None, "url", "must be https://HOST/PATH, without a user, a port and a fragment")
    require(host in hosts, "url", f"names {printable(host or '')}, which mcp.request_hosts does not list")
    require(num_chars <= MAX_HEADER_CHARS, "headers", f"are longer than {MAX_HEADER_CHARS} characters")
    require(not any("${" in value for value in server.headers.values()), "headers", "must not refer to variables")

    async def address_of(_url: str) -> str:
        try:
            addresses = await resolve(host or "")
        except OSError:
            raise TransportLost("its host has no address") from None
        if not addresses or not all(map(is_public, addresses)):
            raise TransportLost("its host has an address that is not public")
        return addresses[0]

    settings = ToolServerSettings(url=server.url, headers=server.headers)
    return McpToolServers({server.name: settings}, max_result, environment={}, address_of=address_of)
