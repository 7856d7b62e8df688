"""A WebSocket at /v1/responses: each message `response.create` is a request with the body of POST /v1/responses, and is
answered with the events of its stream, one JSON a message.

Messages are answered one after another, and each is a request by itself: it needs a valid key and counts against its
limits, whose refusal is an `error` event. A client that disconnects cancels the one that is being answered.

The last response is kept in memory, so that the next message can go on from it though it has `store: false`; a message
that goes on from it and fails makes it forgotten.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from litestar import WebSocket, websocket
from litestar.exceptions import NotAuthorizedException, WebSocketDisconnect
from litestar.handlers import BaseRouteHandler
from msgspec import Raw, Struct

from application.events import FaultObserved
from domain.errors import DomainError, InvalidRequest, LimitReached, ModelNotFound
from interfaces.http.answering.answering import HEADERS_BY_S, begin, listing_models, streamed
from interfaces.http.errors import ClientLeft, ErrorDetail, problem_of, renamed
from interfaces.http.incoming.json_body import body_decoder, decode_json, read_body
from interfaces.http.incoming.request_context import (
    CONNECTION,
    BodiesFull,
    RequestContext,
    SocketConnection,
    context_opener,
)
from interfaces.http.responses.answer import CREATE_RESPONSE, ResponseFraming
from interfaces.http.responses.bodies import responses_error
from interfaces.http.responses.request import ResponsesRequest, resolved
from interfaces.http.responses.stored import MAX_BYTES
from interfaces.http.services import Services

_log = logging.getLogger("cairn.http")

MAX_WAITING = 8
"""Messages that wait for the answer before theirs."""


class Envelope(Struct):
    """The fields of a message beside those of the body. `generate`: only true is supported. `stream_id`: none is."""

    type: str = ""
    generate: bool | None = None
    stream_id: str | None = None


class SocketError(Struct, tag_field="type", tag="error"):
    """The event of a message that was refused, or failed before its first event."""

    status: int
    error: ErrorDetail


class TooManyMessages(LimitReached):
    """More messages wait on the connection than it may have."""

    code = "too_many_messages"


_envelope = msgspec.json.Decoder(Envelope)
_decode_body = body_decoder(ResponsesRequest)


def decode_message(data: bytes) -> ResponsesRequest:
    """Raises InvalidRequest."""
    envelope = decode_json(data, _envelope)
    if envelope.type != "response.create":
        raise InvalidRequest("type: must be 'response.create'", param="type")
    if envelope.generate is False:
        raise InvalidRequest("generate: false is not supported; warm the prompt at /v1/cache/warm", param="generate")
    if envelope.stream_id is not None:
        raise InvalidRequest(
            "stream_id is not supported: messages are answered in turn; leave it out", param="stream_id"
        )
    return _decode_body(data)


class ResponseSocket:
    """One connection, from its handshake to its end."""

    def __init__(self, socket: WebSocket[Any, Any, Any], services: Services, keepalive_s: float) -> None:
        self._socket = socket
        self._services = services
        self._keepalive_s = keepalive_s
        self._open = context_opener(socket.scope)
        self._connection: SocketConnection = socket.scope["state"][CONNECTION]
        self._waiting = asyncio.Queue[tuple[RequestContext, bytes]](MAX_WAITING)
        self._recent: dict[str, Sequence[Raw]] = {}
        """The last response with all items of its conversation, by its id."""
        self._holding: RequestContext | None = None
        """Holds the memory of `_recent`."""

    async def serve(self) -> None:
        await self._socket.accept()
        self._connection.accepted()
        answering = asyncio.create_task(self._answer_all())
        try:
            while (message := await self._socket.receive())["type"] == "websocket.receive":
                text = message.get("text")
                await self._arrive(text.encode() if text is not None else message.get("bytes") or b"")
        except ClientLeft:
            pass
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            while not self._waiting.empty():
                await self._waiting.get_nowait()[0].end()
            await self._forget()

    async def _arrive(self, data: bytes) -> None:
        """Queues a message; refuses one that the server has no memory for, or whose key is not valid any more."""
        context: RequestContext | None = None
        try:
            context = self._open()
            context.hold(len(data))
            if self._waiting.full():
                raise TooManyMessages(f"{MAX_WAITING} messages wait on this connection; send one after the answer")
            self._waiting.put_nowait((context, data))
        except (DomainError, NotAuthorizedException) as error:
            if context is not None:
                await context.end()
            await self._refuse(error)

    async def _answer_all(self) -> None:
        while True:
            context, data = await self._waiting.get()
            self._connection.request_arrived()
            try:
                await self._answer(data, context)
            except ClientLeft:
                return
            except Exception as error:
                await self._refuse(error)
            finally:
                await context.end()
            if self._waiting.empty():
                self._connection.request_answered()

    async def _answer(self, data: bytes, context: RequestContext) -> None:
        """Raises any DomainError before the first event, and ClientLeft."""
        context.arrive(takes_place=True)
        body = await context.run(read_body, data, decode_message)
        goes_on, whole = body.previous_response_id in self._recent, None
        try:
            with renamed(body.wire_names()):
                operation = replace(CREATE_RESPONSE, resolved=partial(resolved, recent=self._recent))
                body, answer, started = await begin(operation, body, context)
                await answer.admitted(min(self._keepalive_s, HEADERS_BY_S))
            framing = ResponseFraming(body, started)
            async for events in streamed(answer, framing, self._keepalive_s):
                for line in events.split(b"\n"):
                    if line.startswith(b"data: "):
                        await self._send(line.removeprefix(b"data: "))
            whole = framing.answer
        except ModelNotFound as error:
            raise await listing_models(context, error) from None
        finally:
            if goes_on and whole is None:
                await self._forget()
        if whole is not None:
            items = [Raw(msgspec.json.encode(item)) for item in whole.output]
            await self._remember(whole.id, [*body.earlier_items, *body.own_items, *items])

    async def _remember(self, id: str, items: Sequence[Raw]) -> None:
        await self._forget()
        num_bytes = sum(len(bytes(item)) for item in items)
        if num_bytes > MAX_BYTES:
            return
        try:
            holding = self._open()
            holding.hold(num_bytes)
        except (DomainError, NotAuthorizedException):
            return
        self._recent, self._holding = {id: items}, holding

    async def _forget(self) -> None:
        self._recent = {}
        holding, self._holding = self._holding, None
        if holding is not None:
            await holding.end()

    async def _refuse(self, error: Exception) -> None:
        problem = problem_of(error)
        if problem.status in (401, 403, 429) or isinstance(error, BodiesFull):
            self._socket.app.state.refusals.note(problem)
        if problem.is_defect:
            _log.error("a message of a WebSocket failed", exc_info=error)
            self._services.events.emit(
                FaultObserved("http", f"websocket: {type(error).__name__}", self._services.clock.now_ns())
            )
        await self._send(msgspec.json.encode(SocketError(problem.status, responses_error(problem).error)))

    async def _send(self, event: bytes) -> None:
        """Raises ClientLeft."""
        try:
            await self._socket.send_data(event.decode(), "text")
        except (OSError, RuntimeError, WebSocketDisconnect):  # uvicorn's, for a connection that is lost or was closed
            raise ClientLeft("the client disconnected") from None


def response_sockets(services: Services, keepalive_s: float) -> list[BaseRouteHandler]:
    @websocket("/v1/responses")
    async def create_responses(socket: WebSocket[Any, Any, Any]) -> None:
        await ResponseSocket(socket, services, keepalive_s).serve()

    return [create_responses]
