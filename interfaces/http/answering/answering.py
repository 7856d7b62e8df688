"""Routes with a JSON body, and the operations among them: the body is decoded and converted, its generations are
started, and their choices go out whole or as a stream.

A client that disconnects cancels the work. Nothing of a stream is sent before its requests have been admitted (or wait
for too long), so that the headers can report the reuse and an earlier failure has a status. Litestar stops reading a
stream as soon as its client disconnects; the request's context closes the answer then.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from types import GenericAlias
from typing import Any

from litestar import patch, post
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Operation as OperationDocument
from litestar.response import Response, Stream
from litestar.types import Receive
from msgspec import Struct

from application.services.text_side.answers.answer import Reading, failure
from application.use_cases.models import ModelEntry
from domain.errors import ComputeFailed, DomainError, ModelNotFound
from domain.request.stream import StreamItem
from interfaces.http.answering.collected import collect
from interfaces.http.answering.dialect import BodyT, Framing, Operation, Started
from interfaces.http.answering.documented import cache_headers, documented, errors
from interfaces.http.errors import ClientLeft, ErrorBody, renamed
from interfaces.http.incoming.json_body import body_decoder, body_dto, read_body
from interfaces.http.incoming.request_context import TAKES_PLACE, RequestContext, context_of

_log = logging.getLogger("cairn.http")

STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""The headers that keep caches and proxies from buffering a stream."""

HEADERS_BY_S = 1.0
"""Clients and proxies give up on servers that send no headers; a request still queued by then says `pending`."""


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
    verb: type[post] | type[patch] = post,
    statuses: Sequence[int] = (),
) -> Callable[[Callable[[Any, RequestContext], Awaitable[Any]]], HTTPRouteHandler]:
    """A decorator that makes `handle(body, context)` a route, by default of POST. `body`: the type of the body in the
    OpenAPI document, and what it is decoded into unless `decode` does that. `is_cancelled`: whether a client that
    disconnects cancels the work. `statuses`: of errors besides those of every such route. Its requests take a place,
    unless `guards` leave them to admins."""
    decoder = decode or body_decoder(body)

    def decorate(handle: Callable[[Any, RequestContext], Awaitable[Any]]) -> HTTPRouteHandler:
        async def respond(data: bytes, request: Request[Any, Any, Any]) -> Any:
            context = context_of(request.scope)
            async with cancelled_on_disconnect(request.receive) if is_cancelled else nullcontext():
                try:
                    return await handle(await context.run(read_body, data, decoder), context)
                except ModelNotFound as error:
                    raise await listing_models(context, error) from None

        respond.__annotations__.update({"data": body, "return": handle.__annotations__["return"]})
        return verb(
            path,
            dto=body_dto(body),
            return_dto=None,
            status_code=200,
            opt={} if guards else TAKES_PLACE,
            guards=guards,
            operation_class=document,
            operation_id=operation_id,
            summary=operation_id[0].upper() + operation_id[1:],
            responses=errors(400, 401, 404, 413, 415, 500, 503, *statuses, error_type=error_type),
        )(respond)

    return decorate


def operation_route(operation: Operation[BodyT], error_type: type[Struct], keepalive_s: float) -> HTTPRouteHandler:
    """The handler of an operation. `error_type`: the dialect's."""

    async def answer(body: BodyT, context: RequestContext) -> Response[Any]:
        with renamed(body.wire_names()):
            if operation.instead is not None and (whole := await operation.instead(body, context)) is not None:
                return Response(whole)
            body, answer, started = await begin(operation, body, context)
            if body.stream:
                return await open_stream(answer, operation.framing(body, started), keepalive_s, operation.stream_type)
            collected = await collect(answer, context.services.clock)
            if any(choice.scores for choice in collected):  # slow to encode
                whole = await asyncio.to_thread(operation.answer, body, started, collected)
            else:
                whole = operation.answer(body, started, collected)
            return Response(whole, headers=cache_headers(answer.explanations))

    answer.__annotations__["return"] = GenericAlias(Response, operation.answer_type)
    return json_route(
        operation.path,
        operation.operation_id,
        operation.body_type,
        error_type=error_type,
        document=documented(operation.links, operation.stream_type),
    )(answer)


async def begin(operation: Operation[BodyT], body: BodyT, context: RequestContext) -> tuple[BodyT, Reading, Started]:
    """Starts the generations of a body. Returns the body with what it refers to, and the answer, which the context
    closes. Raises any DomainError, by the domain's names for fields."""
    if operation.resolved is not None:
        body = await operation.resolved(body, context)
    if operation.prepared is not None:
        body = await operation.prepared(body, context)
    named = await context.run(body.requests, context)
    requests = await context.admit([replace(request, operation=operation.operation_id) for request in named])
    staying = operation.answering(body, context, requests) if operation.answering is not None else None
    clock = context.services.clock
    answer = await context.enter(staying or context.services.generate.answering(requests))
    started = Started(
        context=context,
        requests=tuple(requests),
        reading=answer,
        model=named[0].model,
        submitted_ns=clock.now_ns(),
        created_s=clock.unix_ns() // 1_000_000_000,
    )
    return body, answer, started


async def listing_models(context: RequestContext, error: ModelNotFound) -> ModelNotFound:
    """Returns the same error, naming the models that the client may use."""
    served = ", ".join(entry.source.id for entry in await models_for(context)) or "none"
    return ModelNotFound(f"{error.message}; served here: {served}", param="model")


async def models_for(context: RequestContext) -> list[ModelEntry]:
    """The models that the client may use."""
    entries = await context.services.models.all()
    return [entry for entry in entries if context.client.may_use(entry.source.id)]


@asynccontextmanager
async def cancelled_on_disconnect(receive: Receive) -> AsyncGenerator[None]:
    """Cancels the block when the client disconnects (ClientLeft). The body must have been read."""
    task, has_left = asyncio.current_task(), False
    assert task is not None
    num_cancelled = task.cancelling()

    async def watch() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if has_left and task.uncancel() <= num_cancelled:
            raise ClientLeft("the client disconnected") from None
        raise  # the server ends it as well
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def open_stream(answer: Reading, framing: Framing, keepalive_s: float, media_type: str) -> Stream:
    """The response that streams `answer`, once that is admitted or HEADERS_BY_S have passed. Raises the answer's error
    if it fails before."""
    await answer.admitted(min(keepalive_s, HEADERS_BY_S))
    headers = {**STREAM_HEADERS, **cache_headers(answer.explanations)}
    return Stream(streamed(answer, framing, keepalive_s), media_type=media_type, headers=headers)


async def streamed(answer: Reading, framing: Framing, keepalive_s: float) -> AsyncIterator[bytes]:
    """The bytes of the stream, with the dialect's keep-alive when nothing was sent for too long. An error becomes an
    event, as the status has been sent already."""
    now_s = asyncio.get_running_loop().time
    try:
        if opening := framing.begin():
            yield opening
        keep_alive_at_s = now_s() + keepalive_s
        while answer.is_open:
            items = await answer.items(keep_alive_at_s)
            data, error = _framed(items, framing) if items else (framing.keep_alive(answer.progress), None)
            if data:
                yield data
            if data or not items:
                keep_alive_at_s = now_s() + keepalive_s
            if error is not None:
                raise error
        yield framing.end()
    except DomainError as error:
        yield framing.fail(error)
    except Exception:
        _log.exception("a stream broke")
        yield framing.fail(ComputeFailed("internal error; the server's log has the details"))


def _framed(items: Sequence[tuple[int, StreamItem]], framing: Framing) -> tuple[bytes, DomainError | None]:
    """The bytes of items that arrived together, and the error that ends them if there is one."""
    parts: list[bytes] = []
    for index, item in items:
        if (error := failure(item)) is not None:
            return b"".join(parts), error
        parts.append(framing.feed(index, item))
    return b"".join(parts), None
