"""Tool servers whose calls are reported as events, wherever they come from."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from application.events import ToolCalled
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.tool_servers import ServerStatus, Tool, ToolResult, ToolServers
from domain.errors import DomainError, ToolNotFound

TOOL_ERROR = "tool_error"
CANCELLED = "cancelled"


class ObservedTools:
    """A ToolServers around another one. Each call becomes a ToolCalled, in the task of its caller. A call of a tool
    that does not exist becomes none: models invent names. `shown_as`: the servers' name in events, if not their own."""

    def __init__(self, servers: ToolServers, events: EventSink, clock: Clock, shown_as: str = "") -> None:
        self._servers = servers
        self._events = events
        self._clock = clock
        self._shown_as = shown_as

    def names(self) -> Sequence[str]:
        return self._servers.names()

    def status(self) -> Sequence[ServerStatus]:
        return self._servers.status()

    async def tools(self, server: str) -> Sequence[Tool]:
        return await self._servers.tools(server)

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        started_ns = self._clock.now_ns()

        def tell(error_code: str | None) -> None:
            at_ns = self._clock.now_ns()
            name = self._shown_as or server
            called = ToolCalled(server=name, tool=tool, error_code=error_code, started_ns=started_ns, at_ns=at_ns)
            self._events.emit(called)

        try:
            result = await self._servers.call(server, tool, arguments)
        except ToolNotFound:
            raise
        except DomainError as error:
            tell(error.code)
            raise
        except asyncio.CancelledError:
            tell(CANCELLED)
            raise
        except BaseException:
            tell(DomainError.code)
            raise
        tell(TOOL_ERROR if result.is_error else None)
        return result

    async def restart(self, server: str) -> None:
        await self._servers.restart(server)

    async def close(self) -> None:
        await self._servers.close()
