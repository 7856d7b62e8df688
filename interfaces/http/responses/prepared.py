"""The preparation of a response: the compaction of a conversation that has reached its threshold, and what the answer
needs where it is a compaction itself; the tools of servers, and the calls of them that the client has approved."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from application.services.text_side.answers.answer import Reading
from application.use_cases.tool_loop import LoopPlan
from domain.request.request import FinishReason, GenerationRequest
from interfaces.http.answering.collected import collect
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.responses.compaction import TRIGGER
from interfaces.http.responses.conversation import approvals, compacting, has_answer, listed_servers
from interfaces.http.responses.request import ResponsesRequest, with_fields
from interfaces.http.responses.server_tools import MCP, approved_calls, offered_tools


async def prepared(body: ResponsesRequest, context: RequestContext) -> ResponsesRequest:
    """Returns the body, ready to be answered. Raises any DomainError."""
    body = await _with_server_tools(body, context)
    seal, threshold = body.seal(context), body.compact_threshold
    if body.is_compaction:
        work = await context.run(compacting, body.input, body.earlier_items, seal)
        return with_fields(body, compacting=work)
    if threshold is None or not await context.run(has_answer, body.input, body.earlier_items, seal):
        return body
    asked = await context.admit(await context.run(body.requests, context))
    if await context.services.tokenize.count(asked[0]) < threshold:
        return body
    return await _compacted(with_fields(body, input=[*body.own_items, TRIGGER], max_output_tokens=None), body, context)


async def _with_server_tools(body: ResponsesRequest, context: RequestContext) -> ResponsesRequest:
    """Returns the body with the tools of the servers that it names, and with the calls that it approves, which are run
    here. Without servers, tools of type `mcp` become nothing."""
    loop, tools = context.services.tool_loop, body.tools or ()
    if loop is None or all(tool.get("type") != MCP for tool in tools):
        return body
    offered, lists = await offered_tools(tools, loop, context)
    known = await context.run(listed_servers, body.input, body.earlier_items)
    items = [one for one in lists if one["server_label"] not in known or one["error"] is not None]
    approved = await context.run(approvals, body.input, body.earlier_items)
    if body.is_compaction:
        return with_fields(body, offered=offered)
    items += await approved_calls(approved, offered, loop)
    return with_fields(body, offered=offered, server_items=items)


@asynccontextmanager
async def answering(
    body: ResponsesRequest, context: RequestContext, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[Reading]:
    """The answer to a body; of several steps where the server has tools to call."""
    loop, tools = context.services.tool_loop, body.tool_table.callable
    if loop is None or not tools or body.is_compaction:
        async with context.services.generate.answering(requests) as answer:
            yield answer
    else:
        async with loop.answering(requests[0], LoopPlan(tools, body.max_tool_calls)) as looped:
            yield looped


async def _compacted(asked: ResponsesRequest, body: ResponsesRequest, context: RequestContext) -> ResponsesRequest:
    """Returns `body` with its compaction, the answer to `asked`."""
    work = await context.run(compacting, asked.input, asked.earlier_items, asked.seal(context))
    (request,) = await context.admit(await context.run(asked.requests, context))
    request = replace(request, operation="compactResponse")
    async with context.services.generate.answering([request]) as answer:
        (choice,) = await collect(answer, context.services.clock)
    is_cut = choice.finished.reason is FinishReason.LENGTH
    return with_fields(body, compaction=work.item(f"cmp_{request.id}", choice.text, is_cut=is_cut))
