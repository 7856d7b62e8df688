"""The bodies for vectors and scores in every dialect: their fields, values and routes."""

import asyncio
import struct
from dataclasses import replace
from types import GenericAlias
from typing import Annotated, Any, ClassVar, TypeAlias, get_type_hints

import msgspec
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response
from msgspec import Raw, Struct

from application.use_cases.embed import PooledTexts
from domain.request.pooling import PooledPrompt
from domain.request.request import GenerationRequest
from interfaces.http.answering.answering import json_route
from interfaces.http.fields.parameters import mapped, supported
from interfaces.http.fields.sampling_fields import new_request, tier_priority
from interfaces.http.incoming.request_context import RequestContext

Dimensions: TypeAlias = Annotated[
    int | None, supported("the first numbers of each vector, normalised again, where the model was trained for it")
]


class PooledBody(Struct, kw_only=True):
    """The fields of every body for vectors or scores. Null and absent mean the same for every field. `routes`: path
    and operation id of each."""

    routes: ClassVar[tuple[tuple[str, str], ...]]

    model: Annotated[str | None, supported("without it, the default model answers")] = None
    service_tier: Annotated[str | None, mapped("`flex`: others go first")] = None
    cache_salt: Annotated[str | None, supported("Cairn's own: prefixes are shared only between equal salts")] = None

    def prompt(self) -> PooledPrompt:
        """Returns the texts. Raises InvalidRequest."""
        raise NotImplementedError

    def answer(self, request: GenerationRequest, pooled: PooledTexts) -> Struct:
        """Returns the whole answer, in any thread. `request`: with the model as the client named it."""
        raise NotImplementedError

    async def instead(self, context: RequestContext) -> Struct | None:
        """Returns the answer to a body without texts where its dialect has one; None for any other body."""
        return None

    def request(self, context: RequestContext) -> GenerationRequest:
        """Returns the request; what is computed for it is kept in memory only. Raises InvalidRequest."""
        priority = tier_priority(self.service_tier)
        return new_request(self, context, "embd", self.prompt(), persist=False, priority=priority)


def as_json(value: bytes) -> Any:
    """Returns a vector as a JSON array of numbers, encoded already: a list of them would be many times as large."""
    return Raw(msgspec.json.encode(struct.unpack(f"<{len(value) // 4}f", value)))


def routes_of(error_type: type[Struct], *bodies: type[PooledBody]) -> list[HTTPRouteHandler]:
    """Returns the routes of bodies. `error_type`: their dialect's."""
    return [_route(*route, body, error_type) for body in bodies for route in body.routes]


def _route(path: str, operation_id: str, body_type: type[PooledBody], error_type: type[Struct]) -> HTTPRouteHandler:
    """The handler of a route for vectors or scores. Answers are encoded in a worker thread, a text at a time: 2,048
    vectors of 1,024 numbers are 40 MB of JSON."""

    async def answer(body: PooledBody, context: RequestContext) -> Response[Any]:
        if (whole := await body.instead(context)) is not None:
            return Response(whole)
        named = await context.run(body.request, context)
        (request,) = await context.admit([replace(named, operation=operation_id)])
        pooled = await context.services.embed.pooled(request)
        data = await asyncio.to_thread(lambda: msgspec.json.encode(body.answer(named, pooled)))
        return Response(data, media_type="application/json")

    answer.__annotations__["return"] = GenericAlias(Response, get_type_hints(body_type.answer)["return"])
    return json_route(path, operation_id, body_type, error_type=error_type)(answer)
