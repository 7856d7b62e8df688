"""POST /v1/cache/warm: compute a request's prompt ahead of time and keep it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from litestar import post
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from application.use_cases.warm_prompt import WarmedPrompt
from domain.errors import InvalidRequest
from domain.request.request import GenerationRequest
from interfaces.http.answering.answering import plain_answer
from interfaces.http.answering.dialect import Asked
from interfaces.http.answering.documented import errors
from interfaces.http.cache.bodies import PromptWarmed, WarmedBody
from interfaces.http.errors import renamed
from interfaces.http.fields.prompt_body import PromptBodies, PromptBody
from interfaces.http.incoming.visit import GENERATES, visit_of
from interfaces.http.services import Services


def warm_route(
    services: Services, default_model: str, bodies: PromptBodies, error_type: type[Struct]
) -> HTTPRouteHandler:
    """The handler, bound to what it needs."""

    @post(
        "/v1/cache/warm",
        dto=bodies.dto(),
        opt=GENERATES,
        return_dto=None,
        status_code=200,
        operation_id="warmCache",
        responses=errors(error_type, 400, 401, 404, 413, 415, 500, 503),
    )
    async def warm_cache(data: PromptBody, request: Request[Any, Any, Any]) -> WarmedBody:
        asked = Asked(services, default_model, visit_of(request.scope), request.headers)
        with renamed(data.wire_names):
            requests = asked.visit.admit(await services.answering(await data.requests(asked)), num_at_once=1)
            if not all(one.persist for one in requests):
                raise InvalidRequest("store is false: there is nothing to warm the store with", param="store")
            return await plain_answer(services, request, _warm(services, requests))

    return warm_cache


async def _warm(services: Services, requests: Sequence[GenerationRequest]) -> WarmedBody:
    """One prompt after the other, so that later ones reuse what they share with earlier ones."""
    warmed = [await services.warm_prompt(replace(request, operation="warmCache")) for request in requests]
    return WarmedBody(warmed[0].model, [_prompt(one) for one in warmed])


def _prompt(warmed: WarmedPrompt) -> PromptWarmed:
    return PromptWarmed(warmed.num_prompt, warmed.num_reused, warmed.num_computed, warmed.num_stored)
