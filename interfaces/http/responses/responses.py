"""POST /v1/responses."""

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import Raw

from domain.request.document import DocumentKey
from domain.request.request import GenerationRequest
from domain.request.sampling import SamplingParams, StopRules
from interfaces.http.answering.collected import Collected
from interfaces.http.answering.dialect import Framing, Operation, Started
from interfaces.http.fields.grammar_fields import form_grammar
from interfaces.http.fields.sampling_fields import new_request, tier_priority
from interfaces.http.incoming.json_body import body_decoder
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.responses.answer import AnswerContext, ResponseBody, ResponseFraming, response_body
from interfaces.http.responses.request import (
    FORMAT,
    ResponsesRequest,
    chat_prompt,
    reasoning_limit,
    resolved,
    wire_names,
)
from interfaces.http.responses.stored import OUTPUT_ITEM, RESPONSE, TURN, Turn
from interfaces.http.responses.stored_routes import STORED_LINKS


def _convert(body: ResponsesRequest, context: RequestContext) -> list[GenerationRequest]:
    request = new_request(
        body,
        context,
        "resp",
        chat_prompt(body),
        sampling=SamplingParams.chosen(temperature=body.temperature, top_p=body.top_p, seed=body.seed),
        stop=StopRules(body.max_output_tokens, fits_room=True),
        cache_salt=context.salt(body.cache_salt),
        keeps_text=body.store is not False,
        grammar=form_grammar(body.format, FORMAT),
        reasoning=reasoning_limit(body),
        priority=tier_priority(body.service_tier),
    )
    return [request]


def _answer(body: ResponsesRequest, started: Started, choices: Sequence[Collected]) -> ResponseBody:
    answer = response_body(_context(body, started), choices[0])
    _keep(body, started, answer)
    return answer


def _framing(body: ResponsesRequest, started: Started) -> Framing:
    return ResponseFraming(_context(body, started), partial(_keep, body, started))


def _context(body: ResponsesRequest, started: Started) -> AnswerContext:
    priority = started.requests[0].priority
    return AnswerContext(started.id, started.created_s, started.model, body, priority)


def _keep(body: ResponsesRequest, started: Started, answer: ResponseBody) -> None:
    """Stores the answer, its turn and its items, unless the client declined that. Returns at once."""
    if body.store is False:
        return
    own = body.input
    if isinstance(own, str):
        own = [Raw(msgspec.json.encode({"role": "user", "content": own}))]
    context = started.context
    owner = context.document_owner(body.cache_salt)
    output = [Raw(msgspec.json.encode(item)) for item in answer.output]
    turn = Turn(answer.previous_response_id, own, output)
    bodies = {
        DocumentKey(owner, RESPONSE, answer.id): msgspec.json.encode(answer),
        DocumentKey(owner, TURN, answer.id): msgspec.json.encode(turn),
    }
    for item, raw in zip(answer.output, output, strict=True):
        bodies[DocumentKey(owner, OUTPUT_ITEM, item["id"])] = bytes(raw)
    context.services.documents.keep(bodies, answer.model, context.arrived_ns)


RESPONSES = Operation(
    path="/v1/responses",
    operation_id="createResponse",
    body_type=ResponsesRequest,
    answer_type=ResponseBody,
    decode=body_decoder(ResponsesRequest),
    convert=_convert,
    answer=_answer,
    framing=_framing,
    wire_names=wire_names,
    resolved=resolved,
    discriminator="input",
    noun="a response",
    links=STORED_LINKS,
)
