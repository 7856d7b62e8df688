"""Tool servers in memory, for tests of what uses them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from application.ports.tool_servers import ResultPart, ServerState, ServerStatus, Tool, ToolResult
from domain.errors import ToolCallFailed, ToolNotFound, ToolServerUnavailable

Answer = Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]
"""Maps a tool's name and arguments to its result, or raises as `ToolServers.call` does."""

NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


async def echo(tool: str, arguments: Mapping[str, Any]) -> ToolResult:
    return ToolResult([ResultPart(f"{tool} got {dict(arguments)}")])


async def failing(tool: str, arguments: Mapping[str, Any]) -> ToolResult:
    """Fails in each of the three ways."""
    if tool == "now":
        return ToolResult([ResultPart("no clock here")], is_error=True)
    if tool == "read":
        raise ToolServerUnavailable("it took too long")
    raise ToolCallFailed("no such zone", number=-32000)


class FakeToolServers:
    """A ToolServers. `servers`: the names of each one's tools. `calls`: those that began, as (server, tool, arguments);
    `cancelled`: those that were cancelled. `dead`: servers that cannot be reached; `idle`: those that a list of their
    tools has to start; `listed`: the servers whose tools were listed. `listing`: what a server waits for before it
    lists its tools; `num_waiting`: the listings that wait."""

    def __init__(self, servers: Mapping[str, Sequence[str]], answer: Answer = echo) -> None:
        self._tools = {
            server: [Tool(server, name, f"Does {name}.", NO_ARGUMENTS) for name in sorted(names)]
            for server, names in servers.items()
        }
        self._answer = answer
        self.calls: list[tuple[str, str, Mapping[str, Any]]] = []
        self.cancelled: list[tuple[str, str]] = []
        self.restarted: list[str] = []
        self.dead: set[str] = set()
        self.idle: set[str] = set()
        self.listed: list[str] = []
        self.listing: Callable[[str], Awaitable[object]] | None = None
        self.num_waiting = 0
        self.is_closed = False

    def names(self) -> Sequence[str]:
        return tuple(self._tools)

    def status(self) -> Sequence[ServerStatus]:
        return [
            ServerStatus(
                name,
                "stdio",
                self._state(name),
                "it is dead" if name in self.dead else "",
                num_tools=len(tools),
            )
            for name, tools in self._tools.items()
        ]

    def _state(self, name: str) -> ServerState:
        if name in self.dead:
            return ServerState.WAITING
        return ServerState.IDLE if name in self.idle else ServerState.READY

    def set_tool(self, tool: Tool) -> None:
        """Adds a tool, or replaces the one of its name."""
        others = [one for one in self._tools.get(tool.server, ()) if one.name != tool.name]
        self._tools[tool.server] = sorted([*others, tool], key=lambda one: one.name)

    async def tools(self, server: str) -> Sequence[Tool]:
        if server not in self._tools:
            raise ToolNotFound(f"there is no tool server {server}")
        self.listed.append(server)
        self.idle.discard(server)
        if server in self.dead:
            raise ToolServerUnavailable(f"the tool server {server} cannot be used: it is dead")
        if self.listing is not None:
            self.num_waiting += 1
            try:
                await self.listing(server)
            finally:
                self.num_waiting -= 1
        return tuple(self._tools[server])

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        if all(one.name != tool for one in await self.tools(server)):
            raise ToolNotFound(f"{server} has no tool {tool}")
        self.calls.append((server, tool, arguments))
        try:
            return await self._answer(tool, arguments)
        except asyncio.CancelledError:
            self.cancelled.append((server, tool))
            raise

    async def restart(self, server: str) -> None:
        await self.tools(server)
        self.restarted.append(server)

    async def close(self) -> None:
        self.is_closed = True
