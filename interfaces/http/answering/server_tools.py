"""The tools of configured servers in a request of any dialect: the right to use them, their list, and an answer whose
steps call them.

The list is read once for an answer and sorted, so that the prompts of all its steps begin with the same text.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from application.ports.tool_servers import Tool
from application.services.text_side.answers.answer import Reading
from application.use_cases.tool_loop import Add, LoopPlan, ToolLoop
from domain.errors import DomainError, InvalidRequest
from domain.printable import printable
from domain.request.chat import ToolSpec
from domain.request.request import GenerationRequest
from domain.request.server_calls import OfferedTool
from interfaces.http.incoming.request_context import RequestContext

MAX_SERVERS = 32


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
    loop = context.services.tool_loop
    if loop is None or first_step is None:
        async with context.services.generate.answering(requests) as answer:
            yield answer
    else:
        async with loop.preparing(requests[0], partial(first_step, loop)) as looped:
            yield looped
