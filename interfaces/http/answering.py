"""How every operation of every dialect is answered: its route, whole answers, streams, and clients that leave."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import GenericAlias
from typing import Any

from litestar import post
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response

from application.services.text_side.answer import Answer
from domain.ids import ModelId
from domain.request import GenerationRequest
from interfaces.http.cache_header import cache_headers
from interfaces.http.collected import collect
from interfaces.http.dialect import Asked, BodyT, Operation, Started
from interfaces.http.disconnect import unless_client_leaves
from interfaces.http.documented import errors, streamable
from interfaces.http.errors import renamed
from interfaces.http.event_stream import open_stream
from interfaces.http.json_body import decoded_body
from interfaces.http.services import Services
from interfaces.http.start import start_all
from interfaces.http.visit import GENERATES, visit_of


def operation_route(
    operation: Operation[BodyT], error_type: type[Any], services: Services, default_model: str, keepalive_s: float
) -> HTTPRouteHandler:
    """The handler, bound to what it needs. `error_type`: the dialect's."""

    async def answer(data: BodyT, request: Request[Any, Any, Any]) -> Response[Any]:
        visit = visit_of(request.scope)
        asked = Asked(services, default_model, visit, request.headers, services.clock.now_ns())
        with renamed(operation.wire_names(data)):
            return await unless_client_leaves(request, _answer(operation, data, asked, keepalive_s))

    told = {"data": operation.body_type, "return": GenericAlias(Response, operation.answer_type)}
    answer.__annotations__.update(told)  # the OpenAPI document is made of these
    return post(
        operation.path,
        dto=decoded_body(operation.body_type, operation.decode),
        return_dto=None,
        status_code=200,
        opt=GENERATES,
        operation_class=streamable(operation.stream_type, operation.links),
        operation_id=operation.operation_id,
        summary=operation.operation_id[0].upper() + operation.operation_id[1:],
        responses=errors(error_type, 400, 401, 404, 413, 415, 500, 503),
    )(answer)


async def _answer(operation: Operation[BodyT], body: BodyT, asked: Asked, keepalive_s: float) -> Response[Any]:
    body = await operation.resolved(body, asked)
    named = [replace(one, operation=operation.operation_id) for one in await operation.requests(body, asked)]
    wanted = asked.visit.admit(await asked.services.answering(named))
    answer = await start_all(asked, wanted)
    try:
        started = _started(asked, wanted, answer, named[0].model)
        if body.stream:
            return await open_stream(answer, operation.framing(body, started), keepalive_s, operation.stream_type)
        collected = await collect(answer, asked.services.clock)
        if any(choice.scores for choice in collected):  # long to write down
            whole = await asyncio.to_thread(operation.answer, body, started, collected)
        else:
            whole = operation.answer(body, started, collected)
    except BaseException:
        answer.close()
        raise
    answer.close()
    return Response(whole, headers=cache_headers(answer.explanations))


def _started(asked: Asked, wanted: Sequence[GenerationRequest], answer: Answer, model: ModelId) -> Started:
    first = answer.generations[0]
    return Started(
        asked=asked,
        requests=tuple(wanted),
        prompts=tuple(generation.prompt_ids for generation in answer.generations),
        model=model,
        tokenizer=first.model.tokenizer,
        submitted_ns=asked.services.clock.now_ns(),
        created_s=asked.services.clock.unix_ns() // 1_000_000_000,
    )


__all__ = ("operation_route",)
