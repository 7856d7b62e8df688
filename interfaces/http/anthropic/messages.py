"""POST /v1/messages."""

from collections.abc import Mapping, Sequence

from domain.ids import ModelId
from domain.request.request import GenerationRequest
from interfaces.http.answering.collected import Collected
from interfaces.http.answering.dialect import Framing, Operation, Started
from interfaces.http.anthropic.answer import MessageBody, message_body
from interfaces.http.anthropic.framing import MessageFraming
from interfaces.http.anthropic.messages_request import MessagesRequest
from interfaces.http.anthropic.prompt import (
    chat_prompt,
    grammar,
    reasoning_limit,
    sampling_params,
    stop_rules,
    wire_names,
)
from interfaces.http.fields.sampling_fields import tier_priority
from interfaces.http.incoming.json_body import body_decoder
from interfaces.http.incoming.request_context import RequestContext


class Messages(Operation[MessagesRequest]):
    path = "/v1/messages"
    operation_id = "createMessage"
    body_type = MessagesRequest
    answer_type = MessageBody
    decoder = staticmethod(body_decoder(MessagesRequest))

    def wire_names(self, body: MessagesRequest) -> Mapping[str, str]:
        return wire_names(body)

    def convert(self, body: MessagesRequest, context: RequestContext) -> list[GenerationRequest]:
        wanted = GenerationRequest(
            context.services.ids.request_id("msg"),
            ModelId(context.services.default_model if body.model is None else body.model),
            chat_prompt(body),
            sampling=sampling_params(body),
            stop=stop_rules(body),
            cache_salt=body.cache_salt or "",
            persist=body.store is not False,
            trace_carrier=context.services.trace_context(),
            grammar=grammar(body),
            reasoning=reasoning_limit(body),
            priority=tier_priority(body.service_tier),
        )
        return [wanted]

    def answer(self, body: MessagesRequest, started: Started, choices: Sequence[Collected]) -> MessageBody:
        (choice,) = choices
        return message_body(started.id, started.model, choice, started.requests[0].priority)

    def framing(self, body: MessagesRequest, started: Started) -> Framing:
        return MessageFraming(started.id, started.model, len(started.prompts[0]), started.requests[0].priority)
