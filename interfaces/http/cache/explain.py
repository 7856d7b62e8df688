"""POST /v1/cache/explain: what a request would reuse and why no more. Takes its body, computes nothing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from litestar import post
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from domain.request.request import GenerationRequest
from interfaces.http.answering.answering import plain_answer
from interfaces.http.answering.dialect import Asked
from interfaces.http.answering.documented import errors
from interfaces.http.cache.bodies import ExplanationBody
from interfaces.http.errors import renamed
from interfaces.http.fields.prompt_body import PromptBodies, PromptBody
from interfaces.http.incoming.visit import visit_of
from interfaces.http.operations.explanation_body import prompt_explanation
from interfaces.http.services import Services


def explain_route(
    services: Services, default_model: str, bodies: PromptBodies, error_type: type[Struct]
) -> HTTPRouteHandler:
    """The handler, bound to what it needs."""

    @post(
        "/v1/cache/explain",
        dto=bodies.dto(),
        return_dto=None,
        status_code=200,
        operation_id="explainCache",
        responses=errors(error_type, 400, 401, 404, 413, 415, 500, 503),
    )
    async def explain_cache(data: PromptBody, request: Request[Any, Any, Any]) -> ExplanationBody:
        asked = Asked(services, default_model, visit_of(request.scope), request.headers)
        with renamed(data.wire_names):
            requests = asked.visit.admit(await services.answering(await data.requests(asked)), num_at_once=0)
            return await plain_answer(services, request, _explained(services, requests))

    return explain_cache


async def _explained(services: Services, requests: Sequence[GenerationRequest]) -> ExplanationBody:
    explained = [await services.explain_prompt(replace(one, operation="explainCache")) for one in requests]
    return ExplanationBody(explained[0].model, [prompt_explanation(one.explanation) for one in explained])
