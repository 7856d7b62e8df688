"""POST /v1/responses."""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
from msgspec import Raw

from domain.ids import ModelId
from domain.request.document import Owner
from domain.request.request import GenerationRequest
from interfaces.http.answering.collected import Collected
from interfaces.http.answering.dialect import Asked, Framing, Operation, Started
from interfaces.http.fields.sampling_fields import tier_priority
from interfaces.http.incoming.json_body import body_decoder
from interfaces.http.incoming.visit import owner_of, requested_salt
from interfaces.http.responses.answer import AnswerContext, ResponseBody, response_body
from interfaces.http.responses.framing import ResponseFraming
from interfaces.http.responses.prompt import (
    chat_prompt,
    grammar,
    reasoning_limit,
    sampling_params,
    stop_rules,
    tools_of,
    wire_names,
)
from interfaces.http.responses.resolved import resolved
from interfaces.http.responses.responses_request import ResponsesRequest
from interfaces.http.responses.stored import keep
from interfaces.http.responses.stored_routes import STORED_LINKS


class Responses(Operation[ResponsesRequest]):
    path = "/v1/responses"
    operation_id = "createResponse"
    body_type = ResponsesRequest
    answer_type = ResponseBody
    told_by = "input"
    noun = "a response"
    links = STORED_LINKS
    decoder = staticmethod(body_decoder(ResponsesRequest))

    def wire_names(self, body: ResponsesRequest) -> Mapping[str, str]:
        return wire_names(body)

    async def resolved(self, body: ResponsesRequest, asked: Asked) -> ResponsesRequest:
        return await resolved(body, asked, _owner(body, asked))

    async def requests(self, body: ResponsesRequest, asked: Asked) -> list[GenerationRequest]:
        wanted = GenerationRequest(
            asked.services.ids.request_id("resp"),
            ModelId(asked.default_model if body.model is None else body.model),
            chat_prompt(body),
            sampling=sampling_params(body),
            stop=stop_rules(body),
            cache_salt=requested_salt(asked.headers, body.cache_salt),
            trace_carrier=asked.services.trace_context(),
            keeps_text=body.store is not False,
            grammar=grammar(body),
            reasoning=reasoning_limit(body),
            priority=tier_priority(body.service_tier),
        )
        return [wanted]

    def answer(self, body: ResponsesRequest, started: Started, choices: Sequence[Collected]) -> ResponseBody:
        (choice,) = choices
        answer = response_body(_context(body, started), choice)
        _keep(body, started, answer)
        return answer

    def framing(self, body: ResponsesRequest, started: Started) -> Framing:
        return ResponseFraming(_context(body, started), partial(_keep, body, started))


def _context(body: ResponsesRequest, started: Started) -> AnswerContext:
    priority = started.requests[0].priority
    return AnswerContext(started.id, started.created_s, started.model, body, tools_of(body), priority)


def _keep(body: ResponsesRequest, started: Started, answer: ResponseBody) -> None:
    if body.store is not False:
        own = body.input
        if isinstance(own, str):
            own = [Raw(msgspec.json.encode({"role": "user", "content": own}))]
        asked = started.asked
        keep(asked.services.documents, _owner(body, asked), answer, own, asked.at_ns)


def _owner(body: ResponsesRequest, asked: Asked) -> Owner:
    return owner_of(asked.services.documents, asked.visit, requested_salt(asked.headers, body.cache_salt))
