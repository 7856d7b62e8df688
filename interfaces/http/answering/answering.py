"""How clients are answered, whatever their dialect: the route of an operation, whole answers, streams, other work, and
clients that leave."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from types import GenericAlias
from typing import Any, TypeVar

from litestar import post
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response
from litestar.types import Receive

from application.services.text_side.answers.answer import Answer
from application.use_cases.list_models import ModelEntry
from domain.client import Client
from domain.errors import ModelNotFound
from domain.ids import ModelId
from domain.request.request import GenerationRequest
from interfaces.http.answering.collected import collect
from interfaces.http.answering.dialect import Asked, BodyT, Operation, Started
from interfaces.http.answering.documented import cache_headers, errors, streamable
from interfaces.http.answering.event_stream import open_stream
from interfaces.http.errors import ClientLeft, renamed
from interfaces.http.incoming.json_body import decoded_body
from interfaces.http.incoming.visit import GENERATES, visit_of
from interfaces.http.services import Services

T = TypeVar("T")


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
    named = [
        replace(one, operation=operation.operation_id, asked_ns=asked.at_ns)
        for one in await operation.requests(body, asked)
    ]
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
    return Started(
        asked=asked,
        requests=tuple(wanted),
        prompts=tuple(answer.prompts),
        model=model,
        tokenizer=answer.model.tokenizer,
        submitted_ns=asked.services.clock.now_ns(),
        created_s=asked.services.clock.unix_ns() // 1_000_000_000,
    )


async def start_all(asked: Asked, requests: Sequence[GenerationRequest]) -> Answer:
    """Check and submit every prompt. An invalid one raises here, before any byte is sent; nothing is left running."""
    try:
        return await asked.services.generate.start(requests)
    except ModelNotFound as error:
        raise await naming_what_is_served(asked.services, error, asked.visit.client) from None


async def naming_what_is_served(services: Services, error: ModelNotFound, client: Client) -> ModelNotFound:
    """The same error, with the models that would have been found."""
    served = ", ".join(entry.source.id for entry in await models_for(services, client)) or "none"
    return ModelNotFound(f"{error.message}; served here: {served}", param="model")


async def models_for(services: Services, client: Client) -> list[ModelEntry]:
    """Those that the client may use."""
    return [entry for entry in await services.list_models.all() if client.may_use(entry.source.id)]


async def plain_answer(services: Services, request: Request[Any, Any, Any], work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. A ModelNotFound of its own names the models that the client may use."""
    try:
        return await unless_client_leaves(request, work)
    except ModelNotFound as error:
        raise await naming_what_is_served(services, error, visit_of(request.scope).client) from None


async def unless_client_leaves(request: Request[Any, Any, Any], work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, cancelling it when the client disconnects (ClientLeft). The body must have been read."""
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientLeft("the client left")
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
