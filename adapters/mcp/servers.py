"""The configured tool servers: started when they are first used, bounded in what they may take, and started again.

    IDLE -> STARTING -> READY      a connection that fails: its calls end, and the next use starts it anew,
               ^           |       after a wait that doubles with each failure in a row
               |- WAITING <-

What a server sends is data of a stranger: names have few characters, texts and lists are bounded, and no error of
Cairn's repeats more of it than a line.
"""

import asyncio
import base64
import binascii
import json
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from time import monotonic
from typing import Any, TypeVar

from adapters.mcp.http import HttpTransport
from adapters.mcp.session import RpcFailed, Session, Transport, TransportLost, list_of, object_of
from adapters.mcp.stdio import StdioTransport
from application.mcp_settings import ToolServerSettings
from application.ports.tool_servers import ResultPart, ServerState, ServerStatus, Tool, ToolResult
from domain.errors import ToolCallFailed, ToolNotFound, ToolServerUnavailable
from domain.printable import printable

T = TypeVar("T")

MAX_TOOLS, MAX_LIST_BYTES = 64, 512 << 10
MAX_DESCRIPTION_CHARS = 4096
MAX_IN_FLIGHT = 8
MAX_IMAGES, MAX_IMAGE_BYTES = 4, 4 << 20
START_TIMEOUT_S = 30.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0

_MARGIN = 64 << 10
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_FULL_NAME = 64
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(slots=True)
class _Connection:
    """One server. `shared`: the work on it that several callers wait for, by its name."""

    settings: ToolServerSettings
    status: ServerStatus
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_IN_FLIGHT))
    session: Session | None = None
    stdio: StdioTransport | None = None
    tools: Sequence[Tool] | None = None
    shared: dict[str, asyncio.Task[Any]] = field(default_factory=dict[str, asyncio.Task[Any]])
    num_failures_in_a_row: int = 0
    waits_until_s: float = 0.0


class McpToolServers:
    """A ToolServers by the Model Context Protocol. Event loop only."""

    def __init__(
        self,
        servers: Mapping[str, ToolServerSettings],
        max_result: int,
        *,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = monotonic,
        address_of: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        """`max_result`: bytes of the texts of one result. `environment`: where `${NAME}` is looked up. `address_of`: of
        a URL, or TransportLost; None for wherever its name leads."""
        self._max_result, self._environment, self._clock = max_result, environment, clock
        self._address_of = address_of
        self._connections = {
            name: _Connection(one, ServerStatus(name, "http" if one.url else "stdio", ServerState.IDLE))
            for name, one in servers.items()
            if one.enabled
        }
        self._is_closed = False

    def names(self) -> Sequence[str]:
        return tuple(self._connections)

    def status(self) -> Sequence[ServerStatus]:
        return [
            replace(one.status, log=tuple(one.stdio.log)) if one.stdio is not None else one.status
            for one in self._connections.values()
        ]

    async def tools(self, server: str) -> Sequence[Tool]:
        connection = self._of(server)
        session = await self._session(connection)
        if connection.stdio is not None and connection.stdio.has_other_tools:
            connection.stdio.has_other_tools, connection.tools = False, None
        if connection.tools is None:
            await self._shared(connection, "listing", partial(self._list, connection, session))
        return connection.tools or ()

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        connection = self._of(server)
        if all(one.name != tool for one in await self.tools(server)):
            raise ToolNotFound(f"{server} has no tool {printable(tool)}")
        async with connection.slots:
            session = await self._session(connection)
            _count(connection, num_calls=1)
            try:
                asked = session.request("tools/call", {"name": tool, "arguments": dict(arguments)})
                return self._result(await self._bounded(connection, session, asked))
            except (ToolCallFailed, ToolServerUnavailable):
                _count(connection, num_failures=1)
                raise

    async def restart(self, server: str) -> None:
        connection = self._of(server)
        async with connection.lock:
            await self._drop(connection, ServerState.IDLE, "")
            connection.num_failures_in_a_row, connection.waits_until_s = 0, 0.0
        await self._session(connection)

    async def close(self) -> None:
        self._is_closed = True
        shared = [task for one in self._connections.values() for task in one.shared.values()]
        for task in shared:
            task.cancel()
        await asyncio.gather(*shared, return_exceptions=True)
        ending = (self._drop(one, ServerState.CLOSED, "") for one in self._connections.values())
        await asyncio.gather(*ending, return_exceptions=True)

    # ---- one connection ----------------------------------------------------------------------------------------------

    def _of(self, server: str) -> _Connection:
        if server not in self._connections:
            raise ToolNotFound(f"there is no tool server {printable(server)}")
        return self._connections[server]

    async def _shared(self, connection: _Connection, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of work that is done once for all who wait for it, and that goes on for the others if one
        leaves."""
        task = connection.shared.get(what)
        if task is None or task.done():
            task = connection.shared[what] = asyncio.create_task(work())
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        await asyncio.wait([task])
        if task.cancelled():
            raise ToolServerUnavailable(f"the tool server {connection.status.name} is closed: this server is stopping")
        result: T = task.result()
        return result

    async def _list(self, connection: _Connection, session: Session) -> None:
        self._take_list(connection, await self._bounded(connection, session, session.tools()))

    async def _session(self, connection: _Connection) -> Session:
        """The open conversation, which is begun if there is none."""
        if connection.session is not None:
            return connection.session
        return await self._shared(connection, "start", partial(self._begun, connection))

    async def _begun(self, connection: _Connection) -> Session:
        async with connection.lock:
            if connection.session is not None:
                return connection.session
            name = connection.status.name
            if self._is_closed:
                raise ToolServerUnavailable(f"the tool server {name} is closed: this server is stopping")
            if (left_s := connection.waits_until_s - self._clock()) > 0:
                error = f"the tool server {name} failed ({connection.status.error}); it is tried again in {left_s:.0f}s"
                raise ToolServerUnavailable(error)
            _set(connection, state=ServerState.STARTING, num_starts=connection.status.num_starts + 1)
            session: Session | None = None
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    session = Session(await self._connected(connection))
                    await session.open()
            except (TransportLost, RpcFailed, TimeoutError) as error:
                why = _line(str(error)) if str(error) else f"it did not begin within {START_TIMEOUT_S:.0f}s"
                await self._failed(connection, session, why)
                raise ToolServerUnavailable(f"the tool server {name} cannot be used: {why}") from None
            except BaseException:
                await self._failed(connection, session, "its start was cancelled")
                raise
            connection.session, connection.num_failures_in_a_row = session, 0
            _set(connection, state=ServerState.READY, error="", protocol=session.protocol)
            return session

    async def _connected(self, connection: _Connection) -> Transport:
        settings = connection.settings
        most = self._max_result + MAX_IMAGES * MAX_IMAGE_BYTES * 4 // 3 + _MARGIN
        if settings.url:
            headers = {name: self._filled_in(value, f"headers.{name}") for name, value in settings.headers.items()}
            address = "" if self._address_of is None else await self._address_of(settings.url)
            return HttpTransport(settings.url, headers, most, address)
        environment = {name: self._filled_in(value, f"env.{name}") for name, value in settings.env.items()}
        connection.stdio = stdio = StdioTransport([settings.command, *settings.args], environment, most)
        await stdio.start()
        return stdio

    def _filled_in(self, value: str, field: str) -> str:
        """The value with each `${NAME}` replaced by a variable of Cairn's environment."""

        def variable(match: re.Match[str]) -> str:
            found = self._environment.get(match[1])
            if found is None:
                raise TransportLost(f"{field} names the variable {match[1]}, which is not set")
            return found

        return _REFERENCE.sub(variable, value)

    async def _bounded(self, connection: _Connection, session: Session, asked: Any) -> Any:
        """The answer to a request within the server's time limit. A connection that fails is dropped; one that is slow
        is not, since others may be answered on it."""
        name, limit_s = connection.status.name, connection.settings.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await asked
        except RpcFailed as error:
            raise ToolCallFailed(f"{name} refused: {_line(error.message)}", number=error.code) from None
        except TimeoutError:
            raise ToolServerUnavailable(f"the tool server {name} did not answer within {limit_s:g}s") from None
        except TransportLost as error:
            why = _line(str(error))
            async with connection.lock:
                if connection.session is session:
                    await self._failed(connection, session, why)
            raise ToolServerUnavailable(f"the tool server {name} failed: {why}") from None

    async def _failed(self, connection: _Connection, session: Session | None, why: str) -> None:
        connection.session = session
        await self._drop(connection, ServerState.WAITING, why)
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(connection.num_failures_in_a_row, 10))
        connection.num_failures_in_a_row += 1
        connection.waits_until_s = self._clock() + wait_s

    @staticmethod
    async def _drop(connection: _Connection, state: ServerState, error: str) -> None:
        session, connection.session, connection.tools = connection.session, None, None
        _set(connection, state=state, error=error)
        if session is not None:
            await session.close()
        elif connection.stdio is not None:
            await connection.stdio.close()

    # ---- what a server sends -----------------------------------------------------------------------------------------

    def _take_list(self, connection: _Connection, found: Sequence[Any]) -> None:
        """Keeps the tools that are allowed, and whose names and sizes are within bounds."""
        name, allowed = connection.status.name, connection.settings.tools
        tools, size, left_out = list[Tool](), 0, 0
        for one in sorted(filter(_is_tool, found), key=lambda tool: tool["name"]):
            tool = _tool(name, one)
            if allowed and tool.name not in allowed:
                continue
            own = _size(tool.schema) + len(tool.description)
            if len(tool.full_name) > _MAX_FULL_NAME or len(tools) == MAX_TOOLS or size + own > MAX_LIST_BYTES:
                left_out += 1
                continue
            size += own
            tools.append(tool)
        left_out += sum(not _is_tool(one) for one in found)
        text = json.dumps([[tool.name, tool.description, tool.schema] for tool in tools], sort_keys=True)
        digest, before = sha256(text.encode()).hexdigest()[:16], connection.status.digest
        _set(
            connection,
            num_tools=len(tools),
            digest=digest,
            num_changes=connection.status.num_changes + (before not in ("", digest)),
            error=f"{left_out} of its tools are left out: too many, too large, or of other names" if left_out else "",
        )
        connection.tools = tuple(tools)

    def _result(self, found: Any) -> ToolResult:
        if not isinstance(found, dict):
            return ToolResult([ResultPart("The result is no object.")], is_error=True)
        answer = object_of(found)
        if answer.get("resultType", "complete") != "complete":
            return ToolResult([ResultPart("The tool asked for input, which this server cannot give.")], is_error=True)
        parts, left, was_cut, num_images = list[ResultPart](), self._max_result, False, 0
        for one in list_of(answer.get("content")):
            part = _part(one)
            if part.image is not None:
                num_images += 1
                part = part if num_images <= MAX_IMAGES else ResultPart("[a further image]")
            data = part.text.encode()
            if len(data) > left:
                part, was_cut = replace(part, text=data[:left].decode(errors="ignore")), True
            left -= min(left, len(data))
            parts.append(part)
            if was_cut:
                parts.append(ResultPart(f"[cut: the result is longer than {self._max_result} bytes]"))
                break
        structured = answer.get("structuredContent")
        if structured is not None and _size(structured) > self._max_result:
            structured = None
        if not parts and structured is not None:
            parts.append(ResultPart(json.dumps(structured, ensure_ascii=False)))
        return ToolResult(parts, answer.get("isError") is True, structured, was_cut)


def _set(connection: _Connection, **changes: Any) -> None:
    connection.status = replace(connection.status, **changes)


def _count(connection: _Connection, **more: int) -> None:
    _set(connection, **{name: getattr(connection.status, name) + number for name, number in more.items()})


def _line(text: str) -> str:
    """One line of a stranger's text."""
    return printable(text.partition("\n")[0][:200])


def _size(value: Any) -> int:
    """The characters of a value as JSON; more than any bound for one that is nested too deeply to be written."""
    try:
        return len(json.dumps(value))
    except RecursionError:
        return 1 << 40


def _is_tool(one: Any) -> bool:
    tool = object_of(one)
    name = tool.get("name")
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and isinstance(tool.get("inputSchema"), dict)


def _tool(server: str, one: Mapping[str, Any]) -> Tool:
    description = one.get("description")
    text = description[:MAX_DESCRIPTION_CHARS] if isinstance(description, str) else ""
    return Tool(server, one["name"], text, one["inputSchema"])


def _part(one: Any) -> ResultPart:
    """A part of a result; a note for what a model cannot read."""
    part = object_of(one)
    text = object_of(part.get("resource")).get("text")
    match part.get("type"):
        case "text":
            return ResultPart(str(part.get("text", "")))
        case "image":
            return _image(part.get("data"))
        case "resource" if isinstance(text, str):
            return ResultPart(text)
        case "resource" | "resource_link" | "audio" as kind:
            return ResultPart(f"[a part of type {kind}, which is not shown]")
        case _:
            return ResultPart("[a part of an unknown type]")


def _image(data: Any) -> ResultPart:
    if not isinstance(data, str) or len(data) > MAX_IMAGE_BYTES * 4 // 3 + 4:
        return ResultPart("[an image that is too large, or none]")
    try:
        return ResultPart("[an image]", base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        return ResultPart("[an image that cannot be read]")
