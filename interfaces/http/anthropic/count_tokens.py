"""POST /v1/messages/count_tokens: how long a prompt is, without computing it."""

from typing import Any

from litestar import post
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from domain.ids import ModelId
from domain.request.request import GenerationRequest
from interfaces.http.answering.answering import plain_answer
from interfaces.http.answering.documented import errors
from interfaces.http.anthropic.errors import MessageErrorBody
from interfaces.http.anthropic.messages_request import CountTokensRequest
from interfaces.http.anthropic.prompt import chat_prompt
from interfaces.http.incoming.json_body import json_body
from interfaces.http.incoming.visit import visit_of
from interfaces.http.services import Services


class TokenCountBody(Struct):
    """The whole prompt, as the model's template renders it: messages, system and tools."""

    input_tokens: int


def count_tokens_route(services: Services, default_model: str) -> HTTPRouteHandler:
    """The handler, bound to what it needs."""

    @post(
        "/v1/messages/count_tokens",
        dto=json_body(CountTokensRequest),
        return_dto=None,
        status_code=200,
        operation_id="countMessageTokens",
        responses=errors(MessageErrorBody, 400, 401, 404, 413, 415, 500, 503),
    )
    async def count_message_tokens(data: CountTokensRequest, request: Request[Any, Any, Any]) -> TokenCountBody:
        model = ModelId(default_model if data.model is None else data.model)
        visit = visit_of(request.scope)
        asked = GenerationRequest(services.ids.request_id("count"), model, chat_prompt(data))
        (wanted,) = visit.admit(await services.answering([asked]), num_at_once=0)
        return TokenCountBody(await plain_answer(services, request, services.count_tokens(wanted)))

    return count_message_tokens
