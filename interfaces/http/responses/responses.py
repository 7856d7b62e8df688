"""POST /v1/responses."""

from collections.abc import Mapping, Sequence

from domain.ids import ModelId
from domain.request import GenerationRequest
from interfaces.http.collected import Collected
from interfaces.http.dialect import Asked, Framing, Operation, Started
from interfaces.http.json_body import body_decoder
from interfaces.http.responses.answer import AnswerContext, ResponseBody, response_body
from interfaces.http.responses.framing import ResponseFraming
from interfaces.http.responses.prompt import (
    WIRE_NAMES,
    chat_prompt,
    reasoning_limit,
    sampling_params,
    stop_rules,
    tools_of,
)
from interfaces.http.responses.responses_request import ResponsesRequest


class Responses(Operation[ResponsesRequest]):
    path = "/v1/responses"
    operation_id = "createResponse"
    body_type = ResponsesRequest
    answer_type = ResponseBody
    told_by = "input"
    noun = "a response"
    _decode = staticmethod(body_decoder(ResponsesRequest))

    def decode(self, raw: bytes) -> ResponsesRequest:
        return self._decode(raw)

    def wire_names(self, body: ResponsesRequest) -> Mapping[str, str]:
        return WIRE_NAMES

    async def requests(self, body: ResponsesRequest, asked: Asked) -> list[GenerationRequest]:
        wanted = GenerationRequest(
            asked.services.ids.request_id("resp"),
            ModelId(asked.default_model if body.model is None else body.model),
            chat_prompt(body),
            sampling_params(body),
            stop_rules(body),
            body.cache_salt or "",
            asked.services.trace_context(),
            reasoning=reasoning_limit(body),
        )
        return [wanted]

    def answer(self, body: ResponsesRequest, started: Started, choices: Sequence[Collected]) -> ResponseBody:
        (choice,) = choices
        return response_body(_context(body, started), choice)

    def framing(self, body: ResponsesRequest, started: Started) -> Framing:
        return ResponseFraming(_context(body, started))


def _context(body: ResponsesRequest, started: Started) -> AnswerContext:
    return AnswerContext(started.id, started.created_s, started.model, body, tools_of(body))


__all__ = ("Responses",)
