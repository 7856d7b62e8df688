"""The tools of configured servers in a request of any dialect: the right to use them, their list, and an answer whose
steps call them.

The list is read once for an answer and sorted, so that the prompts of all its steps begin with the same text.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from application.mcp_settings import NAME_FORM
from application.ports.tool_servers import RequestedServer, Tool
from application.services.text_side.answers.answer import Reading
from application.use_cases.tool_loop import Add, LoopPlan, ToolLoop
from domain.errors import DomainError, InvalidRequest, require
from domain.host_name import https_host
from domain.printable import printable
from domain.request.chat import ToolSpec
from domain.request.request import GenerationRequest
from domain.request.server_calls import OfferedTool
from domain.tool_server_names import is_server_name
from interfaces.http.errors import renamed
from interfaces.http.incoming.request_context import RequestContext

MAX_SERVERS = 32
OPERATORS = "is not supported for this server: the operator configures where it is and what it is sent; leave it out"


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool that a request may call, as its server describes it."""

    tool: Tool
    needs_approval: bool

    @property
    def name(self) -> str:
        """The name that the model knows, `server__tool`."""
        return self.tool.full_name

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.tool.description, self.tool.schema)

    @property
    def callable(self) -> OfferedTool:
        return OfferedTool(self.tool.server, self.tool.name, self.needs_approval)


def callable_tools(offered: Sequence[Offered], others: Collection[str]) -> dict[str, OfferedTool]:
    """The tools that the server calls, by each name that a model has for them: models leave out the server's where only
    one tool can be meant. `others`: the names of all other tools."""
    counts = Counter([*others, *[one.tool.name for one in offered]])
    short = {one.tool.name: one.callable for one in offered if counts[one.tool.name] == 1}
    return {**short, **{one.name: one.callable for one in offered}}


def check_right(server: str, path: str, loop: ToolLoop | None, context: RequestContext) -> None:
    """Raises InvalidRequest for a server that is not there, or that the key may not use: it cannot tell the two."""
    if loop is None or server not in loop.names() or not context.client.may_use_tools_of(server):
        raise InvalidRequest(f"{path}: there is no server '{printable(server, 100)}' for this key", param=path)


@dataclass(frozen=True, slots=True)
class Requested:
    """A server that a request names itself. `paths`: of its name, its URL and its headers in the body."""

    server: RequestedServer
    paths: Mapping[str, str]


def check_requested(asked: Requested, loop: ToolLoop | None, context: RequestContext) -> None:
    """Raises InvalidRequest for a server of the request's own where the operator allows none, or this key none of its
    host; and for the name of a configured server, whose address is the operator's."""
    name, url, paths = asked.server.name, asked.server.url, asked.paths
    is_configured = loop is not None and name in loop.names() and context.client.may_use_tools_of(name)
    require(loop is not None and loop.takes_requested and not is_configured, paths["url"], OPERATORS)
    require(is_server_name(name), paths["name"], f"is no name of a server: {NAME_FORM}")
    host = https_host(url)
    require(
        host is None or context.client.may_use_tools_of(host), paths["url"], "names a host that this key may not use"
    )


async def open_requested(asked: Iterable[Requested], context: RequestContext) -> None:
    """Adds the servers to those of the request, until its end. Nothing connects to them yet. Raises InvalidRequest."""
    for one in asked:
        assert context.tool_loop is not None
        with renamed(one.paths):
            context.tool_loop = await context.enter(context.tool_loop.requesting(one.server))


async def listed(servers: Collection[str], loop: ToolLoop) -> list[Sequence[Tool] | DomainError]:
    """The tools of each server, or why there are none; asked all at once."""
    return await asyncio.gather(*[_listed(server, loop) for server in servers])


async def _listed(server: str, loop: ToolLoop) -> Sequence[Tool] | DomainError:
    try:
        return await loop.tools(server)
    except DomainError as error:
        return error


@asynccontextmanager
async def answering_with(
    first_step: Callable[[ToolLoop, Add], Awaitable[tuple[GenerationRequest, LoopPlan]]] | None,
    context: RequestContext,
    requests: Sequence[GenerationRequest],
) -> AsyncGenerator[Reading]:
    """The answer to requests; of several steps where servers have tools to call, whose first one `first_step` makes."""
    loop = context.tool_loop
    if loop is None or first_step is None:
        async with context.services.generate.answering(requests) as answer:
            yield answer
    else:
        async with loop.preparing(requests[0], partial(first_step, loop)) as looped:
            yield looped
