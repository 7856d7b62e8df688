"""Tool servers: programs and services that offer tools by the Model Context Protocol, and the calls of these tools."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias


class ServerState(Enum):
    """The state of a server. IDLE: not started yet, which its first use does. WAITING: it failed and is started again
    after a while."""

    IDLE = "idle"
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as its server describes it: data of a stranger. `schema`: of its arguments, JSON Schema."""

    server: str
    name: str
    description: str
    schema: Mapping[str, Any]

    @property
    def full_name(self) -> str:
        return f"{self.server}__{self.name}"


@dataclass(frozen=True, slots=True)
class ResultPart:
    """A part of a result. `text`: what a model reads; for an image a note. `image`: its bytes, None for a text."""

    text: str
    image: bytes | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call. `is_error`: the tool failed, and the parts say why. `structured`: its result as JSON, None
    for none. `was_cut`: the result was longer than the bound, and a note says so."""

    parts: Sequence[ResultPart]
    is_error: bool = False
    structured: object = None
    was_cut: bool = False


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """A server as operators see it. `error`: the last one, empty for none. `digest`: of the tool list that was read
    last, empty before. `num_changes`: how often a later list differed. `log`: the last lines of its standard error."""

    name: str
    transport: str
    state: ServerState
    error: str = ""
    protocol: str = ""
    num_tools: int = 0
    digest: str = ""
    num_changes: int = 0
    num_starts: int = 0
    num_calls: int = 0
    num_failures: int = 0
    log: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class RequestedServer:
    """A server that a request names itself, for that request only. `headers`: sent to it and to nobody else."""

    name: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


class ToolServers(Protocol):
    """The configured servers. Event loop only; no method but `close` ever takes longer than its server's time limit."""

    def names(self) -> Sequence[str]:
        """Returns the names, in the order of the configuration."""
        ...

    def status(self) -> Sequence[ServerStatus]:
        """Returns the state of every server without asking it."""
        ...

    async def tools(self, server: str) -> Sequence[Tool]:
        """Returns the allowed tools of a server, sorted by name, bounded in number and bytes; starts the server if
        needed. Raises ToolServerUnavailable."""
        ...

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Calls a tool. A caller that is cancelled cancels the call. Raises ToolNotFound, ToolServerUnavailable
        (no connection, time limit), and ToolCallFailed, which has the code and message of a protocol error."""
        ...

    async def restart(self, server: str) -> None:
        """Ends the server's process or connection and starts it anew, without the wait after a failure."""
        ...

    async def close(self) -> None:
        """Ends every process, bounded in time. Idempotent."""
        ...


OpenRequested: TypeAlias = Callable[[RequestedServer], ToolServers]
"""Returns the server, which nothing has connected to yet; the caller closes it. Raises InvalidRequest for one that
requests may not name: `url` or `headers` is its field."""
