"""The preparation of a response: the compaction of a conversation that has reached its threshold, and what the answer
needs where it is a compaction itself."""

from dataclasses import replace

from domain.request.request import FinishReason
from interfaces.http.answering.collected import collect
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.responses.compaction import TRIGGER
from interfaces.http.responses.conversation import compacting, has_answer
from interfaces.http.responses.request import ResponsesRequest, with_fields


async def prepared(body: ResponsesRequest, context: RequestContext) -> ResponsesRequest:
    """Returns the body, ready to be answered. Raises any DomainError."""
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


async def _compacted(asked: ResponsesRequest, body: ResponsesRequest, context: RequestContext) -> ResponsesRequest:
    """Returns `body` with its compaction, the answer to `asked`."""
    work = await context.run(compacting, asked.input, asked.earlier_items, asked.seal(context))
    (request,) = await context.admit(await context.run(asked.requests, context))
    request = replace(request, operation="compactResponse")
    async with context.services.generate.answering([request]) as answer:
        (choice,) = await collect(answer, context.services.clock)
    is_cut = choice.finished.reason is FinishReason.LENGTH
    return with_fields(body, compaction=work.item(f"cmp_{request.id}", choice.text, is_cut=is_cut))
