"""POST /v1/responses/compact: a conversation as the messages that stay, and the compaction in place of the rest."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Raw, Struct, field

from domain.errors import require
from interfaces.http.answering.collected import Collected
from interfaces.http.answering.dialect import Operation, Started
from interfaces.http.fields.parameters import supported
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.responses.answer import CREATE_RESPONSE, response_body
from interfaces.http.responses.bodies import ResponseUsageBody
from interfaces.http.responses.compaction import TRIGGER
from interfaces.http.responses.request import ResponsesRequest, resolved, with_fields
from interfaces.http.responses.stored_routes import ListedItem


class CompactRequest(ResponsesRequest, kw_only=True):
    """The body: the fields of a response, so that the prompt is the same. `model` is required. Nothing is stored."""

    input: Annotated[str | list[Raw], supported("as in a response; it may be absent with `previous_response_id`")] = (
        field(default_factory=list[Raw])
    )


class CompactedBody(Struct, tag_field="object", tag="response.compaction"):
    """`output`: the messages that are not the assistant's, and one item of type `compaction`, as the input of a
    response. `usage`: of the summary."""

    id: str
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsageBody


async def _triggered(body: ResponsesRequest, context: RequestContext) -> ResponsesRequest:
    require(body.model is not None, "model", "is missing: the item belongs to the model that goes on from it")
    return await resolved(with_fields(body, input=[*body.own_items, TRIGGER], store=False), context)


def _compacted_body(request: ResponsesRequest, started: Started, choices: Sequence[Collected]) -> CompactedBody:
    answer = response_body(request, started, choices)
    assert request.work is not None
    assert answer.usage is not None
    kept = [ListedItem(raw, f"{answer.id}_{at}").fields() for at, raw in enumerate(request.work.kept)]
    return CompactedBody(answer.id, answer.created_at, [*kept, *answer.output], answer.usage)


COMPACT_RESPONSE: Operation[ResponsesRequest] = Operation(
    path="/v1/responses/compact",
    operation_id="compactResponse",
    body_type=CompactRequest,
    answer_type=CompactedBody,
    answer=_compacted_body,
    framing=CREATE_RESPONSE.framing,
    resolved=_triggered,
    prepared=CREATE_RESPONSE.prepared,
    answering=CREATE_RESPONSE.answering,
)
