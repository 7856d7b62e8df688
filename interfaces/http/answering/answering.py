"""Routes with a JSON body, and the operations among them: the body is decoded and converted, its generations are
started, and their choices go out whole or as a stream. A client that disconnects cancels the work."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from types import GenericAlias
from typing import Any, TypeVar

from litestar import post
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Operation as OperationDocument
from litestar.response import Response
from litestar.types import Receive
from msgspec import Struct

from application.services.text_side.answers.answer import Answer
from application.use_cases.models import ModelEntry
from domain.errors import InvalidRequest, ModelNotFound
from domain.half_pairs import without_halves
from domain.ids import ModelId
from domain.request.request import GenerationRequest
from interfaces.http.answering.collected import collect
from interfaces.http.answering.dialect import BodyT, Operation, Started
from interfaces.http.answering.documented import cache_headers, documented, errors
from interfaces.http.answering.event_stream import open_stream
from interfaces.http.errors import ClientLeft, ErrorBody, renamed
from interfaces.http.incoming.json_body import body_decoder, body_dto, check_nodes
from interfaces.http.incoming.request_context import TAKES_PLACE, RequestContext, context_of

T = TypeVar("T")


def json_route(
    path: str,
    operation_id: str,
    body: Any,
    decode: Callable[[bytes], object] | None = None,
    *,
    error_type: type[Struct] = ErrorBody,
    guards: Sequence[Any] = (),
    document: type[OperationDocument] = OperationDocument,
    is_cancelled: bool = True,
) -> Callable[[Callable[[Any, RequestContext], Awaitable[Any]]], HTTPRouteHandler]:
    """A decorator that makes `handle(body, context)` a POST route. `body`: the type of the body in the OpenAPI
    document, and what it is decoded into unless `decode` does that. `is_cancelled`: whether a client that disconnects
    cancels the work. Its requests take a place, unless `guards` leave them to admins."""
    decoder = decode or body_decoder(body)

    def checked(raw: bytes) -> object:
        check_nodes(raw)
        try:
            whole = without_halves(raw)
        except ValueError as error:
            raise InvalidRequest(f"the body {error}") from None
        return decoder(whole)

    def decorate(handle: Callable[[Any, RequestContext], Awaitable[Any]]) -> HTTPRouteHandler:
        async def respond(data: bytes, request: Request[Any, Any, Any]) -> Any:
            context = context_of(request.scope)

            async def work() -> Any:
                return await handle(await context.run(checked, data), context)

            try:
                return await (cancelled_on_disconnect(request, work()) if is_cancelled else work())
            except ModelNotFound as error:
                raise await listing_models(context, error) from None

        respond.__annotations__.update({"data": body, "return": handle.__annotations__["return"]})
        return post(
            path,
            dto=body_dto(body),
            return_dto=None,
            status_code=200,
            opt={} if guards else TAKES_PLACE,
            guards=guards,
            operation_class=document,
            operation_id=operation_id,
            summary=operation_id[0].upper() + operation_id[1:],
            responses=errors(400, 401, 404, 413, 415, 500, 503, error_type=error_type),
        )(respond)

    return decorate


def operation_route(operation: Operation[BodyT], error_type: type[Struct], keepalive_s: float) -> HTTPRouteHandler:
    """The handler of an operation. `error_type`: the dialect's."""

    async def answer(body: BodyT, context: RequestContext) -> Response[Any]:
        with renamed(operation.wire_names(body)):
            return await _answer(operation, body, context, keepalive_s)

    answer.__annotations__["return"] = GenericAlias(Response, operation.answer_type)
    return json_route(
        operation.path,
        operation.operation_id,
        operation.body_type,
        operation.decode,
        error_type=error_type,
        document=documented(operation.links, operation.stream_type),
    )(answer)


async def _answer(
    operation: Operation[BodyT], body: BodyT, context: RequestContext, keepalive_s: float
) -> Response[Any]:
    if operation.resolved is not None:
        body = await operation.resolved(body, context)
    named = await context.run(operation.convert, body, context)
    requests = await context.admit([replace(request, operation=operation.operation_id) for request in named])
    answer = await context.enter(context.services.generate.answering(requests))
    started = _started(context, requests, answer, named[0].model)
    if body.stream:
        return await open_stream(answer, operation.framing(body, started), keepalive_s, operation.stream_type)
    collected = await collect(answer, context.services.clock)
    if any(choice.scores for choice in collected):  # slow to encode
        whole = await asyncio.to_thread(operation.answer, body, started, collected)
    else:
        whole = operation.answer(body, started, collected)
    return Response(whole, headers=cache_headers(answer.explanations))


def _started(context: RequestContext, requests: Sequence[GenerationRequest], answer: Answer, model: ModelId) -> Started:
    clock = context.services.clock
    return Started(
        context=context,
        requests=tuple(requests),
        prompts=tuple(answer.prompts),
        model=model,
        tokenizer=answer.model.tokenizer,
        submitted_ns=clock.now_ns(),
        created_s=clock.unix_ns() // 1_000_000_000,
    )


async def listing_models(context: RequestContext, error: ModelNotFound) -> ModelNotFound:
    """Returns the same error, naming the models that the client may use."""
    served = ", ".join(entry.source.id for entry in await models_for(context)) or "none"
    return ModelNotFound(f"{error.message}; served here: {served}", param="model")


async def models_for(context: RequestContext) -> list[ModelEntry]:
    """The models that the client may use."""
    entries = await context.services.models.all()
    return [entry for entry in entries if context.client.may_use(entry.source.id)]


async def cancelled_on_disconnect(request: Request[Any, Any, Any], work: Coroutine[Any, Any, T]) -> T:
    """Runs `work`, and cancels it when the client disconnects (ClientLeft). The body must have been read."""
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientLeft("the client disconnected")
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
