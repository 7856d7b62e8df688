"""POST /v1/messages/count_tokens: the number of tokens of a prompt, without computing it."""

from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from domain.ids import ModelId
from domain.request.request import GenerationRequest
from interfaces.http.answering.answering import json_route
from interfaces.http.anthropic.errors import MessageErrorBody
from interfaces.http.anthropic.messages_request import CountTokensRequest
from interfaces.http.anthropic.prompt import chat_prompt
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.services import Services


class TokenCountBody(Struct):
    """The whole prompt, as the model's template renders it: messages, system and tools."""

    input_tokens: int


def count_tokens_route(services: Services) -> HTTPRouteHandler:
    @json_route("/v1/messages/count_tokens", "countMessageTokens", MessageErrorBody, CountTokensRequest)
    async def count_tokens(body: CountTokensRequest, context: RequestContext) -> TokenCountBody:
        model = ModelId(services.default_model if body.model is None else body.model)
        prompt = await context.run(chat_prompt, body)
        named = GenerationRequest(services.ids.request_id("count"), model, prompt)
        (request,) = await context.admit([named], num_at_once=0)
        return TokenCountBody(await services.tokenize.count(request))

    return count_tokens
