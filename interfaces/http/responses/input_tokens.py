"""POST /v1/responses/input_tokens and /v1/responses/render: the number of tokens in the prompt of a response, and the
tokens themselves."""

from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from domain.request.request import GenerationRequest
from interfaces.http.answering.answering import json_route
from interfaces.http.errors import renamed
from interfaces.http.fields.rendered import RenderedBody, rendered
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.responses.request import ResponsesRequest, resolved, with_fields
from interfaces.http.responses.server_tools import asked_servers, offered_tools
from interfaces.http.services import Services


class InputTokensBody(Struct, tag_field="object", tag="response.input_tokens"):
    """The whole prompt, as the model's template renders it: instructions, items and tools, with those of servers."""

    input_tokens: int


def input_token_routes(services: Services) -> list[HTTPRouteHandler]:
    @json_route("/v1/responses/input_tokens", "countInputTokens", ResponsesRequest)
    async def input_tokens(body: ResponsesRequest, context: RequestContext) -> InputTokensBody:
        with renamed(body.wire_names()):
            return InputTokensBody(await services.tokenize.count(await _whole(body, context)))

    @json_route("/v1/responses/render", "renderResponse", ResponsesRequest)
    async def render(body: ResponsesRequest, context: RequestContext) -> RenderedBody:
        with renamed(body.wire_names()):
            (found,) = await rendered([await _whole(body, context)], context)
            return found

    return [input_tokens, render]


async def _whole(body: ResponsesRequest, context: RequestContext) -> GenerationRequest:
    """The request of a body, with the items it refers to and the tools of servers. Raises any DomainError."""
    body = await resolved(body, context)
    servers = await asked_servers(body.tools or (), context)
    if context.tool_loop is not None and servers:
        offered, _ = await offered_tools(servers, context.tool_loop, context)
        body = with_fields(body, servers=servers, offered=offered)
    (request,) = await context.admit(await context.run(body.requests, context))
    return request
