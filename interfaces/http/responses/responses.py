"""POST /v1/responses."""

from domain.request.request import GenerationRequest
from domain.request.sampling import SamplingParams, StopRules
from interfaces.http.answering.dialect import Operation
from interfaces.http.fields.grammar_fields import form_grammar
from interfaces.http.fields.sampling_fields import new_request, tier_priority
from interfaces.http.incoming.json_body import body_decoder
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.responses.answer import ResponseBody, ResponseFraming, response_body
from interfaces.http.responses.request import (
    FORMAT,
    ResponsesRequest,
    chat_prompt,
    reasoning_limit,
    resolved,
    wire_names,
)
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


RESPONSES = Operation(
    path="/v1/responses",
    operation_id="createResponse",
    body_type=ResponsesRequest,
    answer_type=ResponseBody,
    decode=body_decoder(ResponsesRequest),
    convert=_convert,
    answer=response_body,
    framing=ResponseFraming,
    wire_names=wire_names,
    resolved=resolved,
    discriminator="input",
    noun="a response",
    links=STORED_LINKS,
)
