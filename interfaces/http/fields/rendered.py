"""Routes beside operations, `PATH/render`: the tokens of a prompt as the server would compute them, with its tools.

Routers match them with what servers hold before they choose one. The names are vLLM's.
"""

from collections.abc import Sequence
from typing import Any

from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from domain.request.request import GenerationRequest
from interfaces.http.answering.answering import json_route
from interfaces.http.answering.dialect import BodyT, Operation
from interfaces.http.errors import renamed
from interfaces.http.fields.prompt_body import PromptBody
from interfaces.http.incoming.request_context import RequestContext


class RenderedBody(Struct):
    """The tokens of one prompt. `features`: always null; a prompt with images is refused."""

    token_ids: list[int]
    features: None = None


def render_route(operation: Operation[BodyT], error_type: type[Struct]) -> HTTPRouteHandler:
    """The handler for bodies of `operation` that have one prompt."""

    async def render(body: BodyT, context: RequestContext) -> RenderedBody:
        (found,) = await _all(operation, body, context)
        return found

    return _route(operation, error_type, render)


def render_list_route(operation: Operation[BodyT], error_type: type[Struct]) -> HTTPRouteHandler:
    """The handler for bodies of `operation` that may have several prompts; it answers with a list of them."""

    async def render(body: BodyT, context: RequestContext) -> list[RenderedBody]:
        return await _all(operation, body, context)

    return _route(operation, error_type, render)


async def rendered(requests: Sequence[GenerationRequest], context: RequestContext) -> list[RenderedBody]:
    """The tokens of each request's prompt. Raises any DomainError."""
    return [RenderedBody(list(await context.services.tokenize.rendered(one))) for one in requests]


async def _all(operation: Operation[BodyT], body: BodyT, context: RequestContext) -> list[RenderedBody]:
    with renamed(body.wire_names()):
        return await rendered(await PromptBody(operation, body).requests(context), context)


def _route(operation: Operation[Any], error_type: type[Struct], render: Any) -> HTTPRouteHandler:
    id = f"render{operation.operation_id.removeprefix('create')}"
    return json_route(f"{operation.path}/render", id, operation.body_type, error_type=error_type)(render)
