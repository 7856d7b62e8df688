"""GET /v1/mcp/servers and /v1/mcp/tools, POST /v1/mcp/execute and /v1/mcp/servers/{name}/restart: the configured tool
servers, of which each key sees those that it may use. All but the list of tools are for admins."""

import asyncio
from collections.abc import Mapping
from typing import Any

from litestar import Request, get, post
from litestar.datastructures import CacheControlHeader
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from application.ports.tool_servers import ServerState, ServerStatus, Tool, ToolResult, ToolServers
from domain.client import Client
from domain.errors import InvalidRequest, ServerUnavailable, ToolCallFailed, ToolNotFound, ToolServerUnavailable
from domain.printable import printable
from domain.tool_server_names import split_full_name
from interfaces.http.answering.answering import json_route
from interfaces.http.answering.documented import errors
from interfaces.http.incoming.request_context import RequestContext, admins_only, context_of
from interfaces.http.services import Services

PREFIX = "/v1/mcp"


class NoToolServers(ServerUnavailable):
    """This server has no tool servers."""

    code = "no_tool_servers"
    retryable = False


class ToolServerBody(Struct):
    """A tool server. `state`: `idle` (not started yet), `starting`, `ready`, `waiting` (it failed, and is started again
    after a while) or `closed`. `error`: the last one. `digest`: of its tool list; `changes`: how often a later list
    differed. `log`: the last lines of its standard error."""

    name: str
    transport: str
    state: str
    protocol: str
    error: str
    tools: int
    digest: str
    changes: int
    starts: int
    calls: int
    failures: int
    log: list[str]


class ToolServerListBody(Struct):
    """The configured tool servers; none without any."""

    servers: list[ToolServerBody]


class ToolBody(Struct):
    """A tool as its server describes it. `name`: `server__tool`."""

    name: str
    server: str
    description: str
    input_schema: Mapping[str, Any]


class ListedServerBody(Struct):
    """A server of the list. `error`: why it has no tools here; empty without one. `listed`: false where it would have
    had to be started. `approval`: the operator's rule for calls, `always` or `never`."""

    name: str
    tools: int
    error: str
    listed: bool = True
    approval: str = "always"


class ToolListBody(Struct):
    """The tools of the servers that the key may use, sorted by name within each."""

    tools: list[ToolBody]
    servers: list[ListedServerBody]


class ToolOrder(Struct, forbid_unknown_fields=True):
    """A call of a tool, by its name `server__tool` in `tool` or `tool_name`."""

    tool: str | None = None
    tool_name: str | None = None
    arguments: dict[str, Any] | None = None


class ToolResultBody(Struct):
    """The end of a call. `is_error`: the tool or its server failed, and `error_message` says why. `content`: the texts
    of the result. `structured_content`: its JSON value, null for none. `images`: in base64. `was_cut`: the result was
    longer than `mcp.max_result`."""

    tool_name: str
    content: str
    is_error: bool
    error_message: str = ""
    structured_content: Any = None
    images: list[bytes] = []
    was_cut: bool = False


def mcp_routes(services: Services) -> list[HTTPRouteHandler]:
    @_get("/servers", "listToolServers", admin=True)
    async def list_servers(request: Request[Any, Any, Any]) -> ToolServerListBody:
        client, servers = context_of(request.scope).client, services.tool_servers
        found = servers.status() if servers is not None else ()
        return ToolServerListBody([_server_body(one) for one in found if client.may_use_tools_of(one.name)])

    @_get("/tools", "listServerTools", admin=False)
    async def list_tools(
        request: Request[Any, Any, Any], server: str | None = None, start: bool = True
    ) -> ToolListBody:
        client, servers, loop = context_of(request.scope).client, services.tool_servers, services.tool_loop
        if servers is None:
            return ToolListBody([], [])
        own = [one for one in servers.status() if client.may_use_tools_of(one.name) and server in (None, one.name)]
        found = await asyncio.gather(*(_listed(servers, one, start) for one in own))
        bodies: list[ListedServerBody] = []
        for one, (tools, error, is_listed) in zip(own, found, strict=True):
            rule = "always" if loop is None or loop.needs_approval(one.name) else "never"
            bodies.append(ListedServerBody(one.name, len(tools), error, is_listed, rule))
        tools = [tool for ones, _, _ in found for tool in ones]
        return ToolListBody([ToolBody(one.full_name, one.server, one.description, one.schema) for one in tools], bodies)

    @json_route(f"{PREFIX}/execute", "executeTool", ToolOrder, guards=[admins_only])
    async def execute(body: ToolOrder, context: RequestContext) -> ToolResultBody:
        name = body.tool or body.tool_name
        if not name or (body.tool and body.tool_name not in (None, body.tool)):
            raise InvalidRequest("tool must be the name of one tool, like server__tool", param="tool")
        servers, (server, tool) = _configured(services), split_full_name(name)
        _check(servers, server, context.client)
        try:
            return _result_body(name, await servers.call(server, tool, body.arguments or {}))
        except (ToolServerUnavailable, ToolCallFailed) as error:
            return ToolResultBody(name, "", is_error=True, error_message=error.message)

    @post(
        PREFIX + "/servers/{name:str}/restart",
        guards=[admins_only],
        status_code=200,
        operation_id="restartToolServer",
        responses=errors(401, 404, 503),
    )
    async def restart(name: str, request: Request[Any, Any, Any]) -> ToolServerBody:
        servers = _configured(services)
        _check(servers, name, context_of(request.scope).client)
        await servers.restart(name)
        return next(_server_body(one) for one in servers.status() if one.name == name)

    return [list_servers, list_tools, execute, restart]


def _get(path: str, operation_id: str, *, admin: bool) -> get:
    return get(
        PREFIX + path,
        guards=[admins_only] if admin else [],
        cache_control=CacheControlHeader(no_store=True),
        operation_id=operation_id,
        responses=errors(401),
    )


def _configured(services: Services) -> ToolServers:
    if services.tool_servers is None:
        raise NoToolServers("no tool server is configured: add a table [mcp.servers.NAME] to the settings")
    return services.tool_servers


def _check(servers: ToolServers, name: str, client: Client) -> None:
    """Raises NotAllowed, or ToolNotFound for a server that is not configured."""
    client.check_tools_of(name)
    if name not in servers.names():
        raise ToolNotFound(f"no tool server is named '{printable(name)}'", param="tool")


async def _listed(servers: ToolServers, server: ServerStatus, start: bool) -> tuple[list[Tool], str, bool]:
    """The tools of a server, or none and why, and whether it was asked: without `start`, only one that runs is."""
    if not start and server.state is not ServerState.READY:
        return [], server.error, False
    try:
        return list(await servers.tools(server.name)), "", True
    except (ToolServerUnavailable, ToolCallFailed) as error:
        return [], error.message, True


def _server_body(one: ServerStatus) -> ToolServerBody:
    counts = one.num_changes, one.num_starts, one.num_calls, one.num_failures
    log = [printable(line) for line in one.log]
    shown = one.name, one.transport, one.state.value, printable(one.protocol), one.error
    return ToolServerBody(*shown, one.num_tools, one.digest, *counts, log)


def _result_body(name: str, result: ToolResult) -> ToolResultBody:
    text = "\n".join(part.text for part in result.parts)
    images = [part.image for part in result.parts if part.image is not None]
    message = text if result.is_error else ""
    return ToolResultBody(name, text, result.is_error, message, result.structured, images, result.was_cut)
