"""The preparation of a response: the compaction of a conversation that has reached its threshold, and what the answer
needs where it is a compaction itself; the tools of servers, and the calls of them that the client has approved.

What only the body decides is checked before the answer. Servers are asked in the answer, so that one that hangs delays
no headers, and a client that leaves cancels it:

    lists of tools ──► compaction ──► approved calls ──► the first step
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from application.use_cases.tool_loop import Add, LoopPlan, ToolLoop
from domain.errors import require
from domain.request.request import FinishReason, GenerationRequest
from domain.request.stream import AnswerPrepared
from interfaces.http.answering.collected import collect
from interfaces.http.answering.dialect import AnsweringContext
from interfaces.http.answering.server_tools import answering_with
from interfaces.http.errors import renamed
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.responses.compaction import TRIGGER
from interfaces.http.responses.conversation import approvals, compacting, has_answer, listed_servers
from interfaces.http.responses.request import ResponsesRequest, chat_prompt, with_fields
from interfaces.http.responses.server_tools import NOT_OFFERED, approved_calls, asked_servers, offered_tools


async def prepared(body: ResponsesRequest, context: RequestContext) -> ResponsesRequest:
    """Returns the body, ready to be answered. Raises any DomainError."""
    servers = await asked_servers(body.tools or (), context)
    loop = context.tool_loop
    approved = await context.run(approvals, body.input, body.earlier_items)
    for path, request in approved:
        require(request.server_label in servers, f"{path}.approval_request_id", NOT_OFFERED)
        require(not body.is_compaction, path, "approves a call, which a compaction does not run; compact after it")
    if loop is not None:
        require(len(approved) <= loop.max_calls, "input", f"approves more than {loop.max_calls} calls")
    if body.is_compaction:
        work = await context.run(compacting, body.input, body.earlier_items, body.seal(context))
        body = with_fields(body, compacting=work)
    if servers:
        return with_fields(body, servers=servers, approved=approved)
    return await _compacted(body, context)


def answering(
    body: ResponsesRequest, context: RequestContext, requests: Sequence[GenerationRequest]
) -> AnsweringContext:
    """The answer to a body; of several steps where the server has tools to call."""
    first_step = partial(_first_step, body, context, requests[0]) if body.servers else None
    return answering_with(first_step, context, requests)


async def _first_step(
    body: ResponsesRequest, context: RequestContext, request: GenerationRequest, loop: ToolLoop, add: Add
) -> tuple[GenerationRequest, LoopPlan]:
    """Makes the first step of a body that names servers."""
    with renamed(body.wire_names()):
        offered, lists = await offered_tools(body.servers, loop, context)
        known = await context.run(listed_servers, body.input, body.earlier_items)
        made = [one for one in lists if one["server_label"] not in known or one["error"] is not None]
        body = with_fields(body, offered=offered)
        if body.work is None:
            add(AnswerPrepared(body := with_fields(body, made=made)))
            add(AnswerPrepared(body := await _compacted(body, context)))
            calls = await approved_calls(body.approved, offered, loop)
            add(AnswerPrepared(body := with_fields(body, made=[*body.made, *calls])))
        prompt = await context.run(chat_prompt, body, body.seal(context))
        tools = {} if body.work is not None else body.tool_table.callable
        return replace(request, prompt=prompt), LoopPlan(tools, body.max_tool_calls)


async def _compacted(body: ResponsesRequest, context: RequestContext) -> ResponsesRequest:
    """Returns `body` with the compaction of its conversation, where that has reached its threshold."""
    seal, threshold = body.seal(context), body.compact_threshold
    if body.work is not None or threshold is None:
        return body
    if not await context.run(has_answer, body.input, body.earlier_items, seal):
        return body
    counted = await context.admit(await context.run(body.requests, context))
    if await context.services.tokenize.count(counted[0]) < threshold:
        return body
    asked = with_fields(body, input=[*body.own_items, TRIGGER], max_output_tokens=None, made=[])
    work = await context.run(compacting, asked.input, asked.earlier_items, asked.seal(context))
    (request,) = await context.admit(await context.run(asked.requests, context))
    request = replace(request, operation="compactResponse")
    async with context.services.generate.answering([request]) as answer:
        (choice,) = await collect(answer, context.services.clock)
    is_cut = choice.finished.reason is FinishReason.LENGTH
    return with_fields(body, made=[*body.made, work.item(f"cmp_{request.id}", choice.text, is_cut=is_cut)])
