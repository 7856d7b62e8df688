"""The tools of a message: those of the client, and those of configured servers, which the server calls itself.

    tools[i] with a schema                    a tool of the client
    mcp_servers[i] ──► right of the key, the operator's rule ──┐
    tools[i] of type mcp_toolset, or tool_configuration ───────┴─► listing ──► `server__tool` for the model
    any other                                 nothing: another server would run it (web_search, ...)

This dialect has no form in which a client could approve a call. So a server is refused by name unless the operator lets
its tools run without asking.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from application.ports.tool_servers import RequestedServer
from domain.errors import DomainError, InvalidRequest, require
from domain.printable import printable
from domain.request.chat import Json, ToolSpec
from interfaces.http.answering.server_tools import (
    MAX_SERVERS,
    OPERATORS,
    Offered,
    Requested,
    check_requested,
    check_right,
    listed,
    open_requested,
)
from interfaces.http.incoming.json_body import converted
from interfaces.http.incoming.request_context import RequestContext

TOOLSET = "mcp_toolset"


class Tool(Struct):
    """A tool with a schema. Its other fields (`cache_control`, `defer_loading`, ...) stay out of the prompt."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


def tool_specs(tools: Sequence[Mapping[str, Any]], offered: Sequence[Offered] = ()) -> tuple[ToolSpec, ...]:
    """Returns the tools for the prompt, those of servers last. Raises InvalidRequest, naming `tools[i].field`."""
    found: list[ToolSpec] = []
    for index, raw in enumerate(tools):
        if "input_schema" in raw or raw.get("type") in (None, "custom"):  # others are run by a server
            tool = converted(raw, Tool, f"tools[{index}]")
            schema = cast("dict[str, Json]", tool.input_schema)
            found.append(ToolSpec(tool.name, tool.description or "", schema, tool.strict is True))
    return (*found, *[one.spec for one in offered])


def tool_names(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The names of the client's own tools."""
    return frozenset(spec.name for spec in tool_specs(tools))


class ToolConfig(Struct):
    """The choice of a tool. Without `enabled`, the default of its set counts."""

    enabled: bool | None = None


class Toolset(Struct):
    """The tools of a server that are offered, by the newer form."""

    mcp_server_name: str
    default_config: ToolConfig | None = None
    configs: dict[str, ToolConfig] | None = None
    tools: Any = None


class ToolConfiguration(Struct):
    """The tools of a server that are offered, by the older form."""

    enabled: bool | None = None
    allowed_tools: list[str] | None = None


class McpServer(Struct):
    """A server by its name in the configuration, or one that the request names itself, by its URL."""

    name: str
    type: str = "url"
    url: str | None = None
    authorization_token: str | None = None
    tool_configuration: ToolConfiguration | None = None


_UNASKABLE = "wants tools whose calls need approval, which this dialect cannot ask for; the operator may free them"


class WantedServer:
    """A server that the body names, at `path`, and the tools of it that it wants."""

    def __init__(self, path: str, server: McpServer) -> None:
        older = server.tool_configuration or ToolConfiguration()
        names = [] if older.enabled is False else older.allowed_tools
        self.path = path
        self.requested: Requested | None = None
        self._allowed = None if names is None else frozenset(names)
        self._at, self._default = "", True
        self._choices: Mapping[str, bool] = {}

    @property
    def has_toolset(self) -> bool:
        return self._at != ""

    def take(self, toolset: Toolset, path: str) -> None:
        self._at, default = path, toolset.default_config
        self._default = default is None or default.enabled is not False
        found = (toolset.configs or {}).items()
        self._choices = {tool: config.enabled for tool, config in found if config.enabled is not None}

    def has(self, tool: str) -> bool:
        is_allowed = self._allowed is None or tool in self._allowed
        return is_allowed and self._choices.get(tool, self._default)

    def wants(self) -> str:
        """The path at which a tool is wanted, by its name or as one of all; empty where none is."""
        named = next(filter(self.has, self._choices), None)
        if named is not None:
            return f"{self._at}.configs.{printable(named, 100)}"
        if self._allowed == frozenset() or not self._default:
            return ""
        if self.has_toolset:
            return f"{self._at}.mcp_server_name"
        return f"{self.path}.name" if self._allowed is None else f"{self.path}.tool_configuration.allowed_tools"


def wanted_servers(
    servers: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], context: RequestContext
) -> dict[str, WantedServer]:
    """The servers of `mcp_servers` by name, with the toolsets of `tools`. Raises InvalidRequest."""
    loop = context.tool_loop
    require(len(servers) <= MAX_SERVERS, "mcp_servers", f"are more than {MAX_SERVERS}")
    wanted: dict[str, WantedServer] = {}
    for at, raw in enumerate(servers):
        path = f"mcp_servers[{at}]"
        server = converted(raw, McpServer, path)
        require(server.type == "url", f"{path}.type", "must be 'url'")
        require(server.name not in wanted, f"{path}.name", "is there twice")
        one = WantedServer(path, server)
        if server.url is not None:
            one.requested = _requested(server, server.url, path)
            check_requested(one.requested, loop, context)
        else:
            check_right(server.name, f"{path}.name", loop, context)
            require(server.authorization_token is None, f"{path}.authorization_token", OPERATORS)
        wanted[server.name] = one
    _take_toolsets(wanted, tools)
    for name, one in wanted.items():
        if loop is None or (loop.asks_requested if one.requested else loop.needs_approval(name)):
            require(not (path := one.wants()), path, _UNASKABLE)
    return wanted


def _requested(server: McpServer, url: str, path: str) -> Requested:
    token = server.authorization_token
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    paths = {"name": f"{path}.name", "url": f"{path}.url", "headers": f"{path}.authorization_token"}
    return Requested(RequestedServer(server.name, url, headers), paths)


def _take_toolsets(wanted: Mapping[str, WantedServer], tools: Sequence[Mapping[str, Any]]) -> None:
    """Raises InvalidRequest."""
    for at, raw in enumerate(tools):
        if raw.get("type") == TOOLSET:
            path = f"tools[{at}]"
            toolset = converted(raw, Toolset, path)
            one = wanted.get(toolset.mcp_server_name)
            if one is None or one.has_toolset:
                why = "names none of mcp_servers" if one is None else "is there twice"
                raise InvalidRequest(f"{path}.mcp_server_name {why}", param=f"{path}.mcp_server_name")
            require(toolset.tools is None, f"{path}.tools", "is not supported: the server is asked for its tools")
            one.take(toolset, path)
    if any(one.has_toolset for one in wanted.values()):
        for one in wanted.values():
            require(one.has_toolset, f"{one.path}.name", f"has no {TOOLSET} among 'tools'")


async def opened_servers(
    servers: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], context: RequestContext
) -> dict[str, WantedServer]:
    """As `wanted_servers`, with those that the request names itself opened. Raises InvalidRequest."""
    wanted = await context.run(wanted_servers, servers, tools, context)
    await open_requested([one.requested for one in wanted.values() if one.requested is not None], context)
    return wanted


async def offered_tools(
    wanted: Mapping[str, WantedServer], own: Collection[str], context: RequestContext
) -> list[Offered]:
    """The tools of the servers but for those that have the name of one of the client's `own`. Of a server that does not
    answer there are none, and the answer's header says that."""
    loop = context.tool_loop
    if loop is None:
        return []
    offered: list[Offered] = []
    for one, found in zip(wanted.values(), await listed(wanted, loop), strict=True):
        if isinstance(found, DomainError):
            context.ignored = [*context.ignored, one.path]
            continue
        tools = [Offered(tool, loop.needs_approval(tool.server)) for tool in found if one.has(tool.name)]
        offered += [tool for tool in tools if tool.name not in own]
    return offered
