"""One HTTP connection with bounds on headers, time and unread answers, which uvicorn's protocol class lacks.

    BETWEEN --first byte--> HEAD --headers--> BODY --last byte--> BETWEEN
       |                      |                 |
       keep-alive (uvicorn)   header_timeout_s  body_timeout_s, extended while the body keeps coming

Bounds apply before the application looks at the request, and so before its key; the guard checks the exact size of a
complete head. A refused request is answered where that is still possible, then the connection is closed and its further
input thrown away. A request that is sent before the last one was answered closes the connection after that answer: no
client in use pipelines. The unit tests of this class name the behaviour of uvicorn that it rests on (TestUvicorn)."""

import asyncio
from email.utils import formatdate
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from interfaces.http.errors import Problem
from interfaces.http.front.bounded_protocol import BoundedProtocol
from interfaces.http.front.connection_limits import (
    FULL,
    HEADERS_TOO_LARGE,
    LINGER_S,
    MALFORMED,
    MAX_DISCARDED_BYTES,
    MAX_HEADER_BYTES,
    MAX_TARGET_BYTES,
    PIPELINED,
    TARGET_TOO_LONG,
    TOO_LARGE,
    TOO_SLOW,
    ConnectionLimits,
    ConnectionSlots,
    RequestPart,
    Slot,
    more_time_s,
)
from interfaces.http.front.guard import HealthOnly, Refusals

PIECE_BYTES = 16 * 2**10
"""Size of the pieces in which input is parsed, so that a large read is counted before all of it is kept."""


class _RefusedInput(Exception):
    """The exception that a callback raises to stop the parser."""


class UnchunkedAnswer(RequestResponseCycle):
    """An answer to HTTP/1.0, which knows no chunks: without a length, the end of the connection is its end."""

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.chunked_encoding = False
        else:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class BoundedConnection(BoundedProtocol, HttpToolsProtocol):
    """A connection with limits on headers, bodies, time and unread answers. Event loop only."""

    def __init__(self, limits: ConnectionLimits, slots: ConnectionSlots, refusals: Refusals, **of_uvicorn: Any) -> None:
        super().__init__(limits, slots, refusals, **of_uvicorn)
        self._phase = RequestPart.BETWEEN
        self._is_done = False
        self._num_unused = self._num_new_body = self._num_discarded = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        slot = self._enter_slot()
        if slot is Slot.NONE:
            self._refuse(FULL, lingers=False)
            return
        if slot is Slot.HEALTH_ONLY:
            self.app = HealthOnly(self.app, FULL, self._refusals)
        self._arrival.arm(self._limits.header_timeout_s)

    def evict(self) -> None:
        if self._phase is RequestPart.BETWEEN:  # no request, so no answer
            self._refusals.note(FULL)
            self._close()
        else:
            self._refuse(FULL, lingers=False)

    # Input

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            if self._is_done:
                if self._discards(piece):
                    self.transport.abort()
                    return
                continue
            self._num_unused += len(piece)
            super().data_received(piece)
            if not self._is_done and (problem := self._excess(piece)) is not None:
                self._refuse(problem)
        if not self._is_done:
            self._watch_arrival()

    def _excess(self, piece: bytes) -> Problem | None:
        """Returns the problem of input of which the parser makes nothing, or of a body that is not awaited any more."""
        if self._num_unused > MAX_HEADER_BYTES + MAX_TARGET_BYTES:
            if self._phase is not RequestPart.HEAD:
                return MALFORMED
            return TARGET_TOO_LONG if len(self.url) > MAX_TARGET_BYTES else HEADERS_TOO_LARGE
        is_unwanted = self._phase is RequestPart.BODY and self._answering is None
        return TOO_LARGE if is_unwanted and self._discards(piece) else None

    def _discards(self, piece: bytes) -> bool:
        """Counts discarded input. Returns whether it exceeds MAX_DISCARDED_BYTES."""
        self._num_discarded += len(piece)
        return self._num_discarded > MAX_DISCARDED_BYTES

    def _watch_arrival(self) -> None:
        """Arm the deadline of a request that is arriving; cancel it while the client waits for an answer."""
        if self._phase is RequestPart.BETWEEN and self._answering is not None:
            self._arrival.cancel()
        elif not self._arrival.is_armed:
            self._arrival.arm(self._timeout_s)

    @property
    def _timeout_s(self) -> float:
        limits = self._limits
        return limits.body_timeout_s if self._phase is RequestPart.BODY else limits.header_timeout_s

    def _too_slow(self) -> None:
        if self._is_done:
            self.transport.abort()
            return
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # the application has not read the input
            self._arrival.arm(self._timeout_s)
            return
        more_s, self._num_new_body = more_time_s(self._num_new_body, self._timeout_s), 0
        if more_s > 0.001:
            self._arrival.arm(more_s)
        elif self._phase is RequestPart.BETWEEN:  # no request, so no answer
            self._close()
        else:
            self._refuse(TOO_SLOW)

    def handle_websocket_upgrade(self) -> None:
        """Hands the connection over to a protocol of `socket_connection`, with its slot."""
        self._is_done = True  # a client sends nothing more before the handshake is answered
        self._end_deadlines()
        self._slots.leave(self)
        super().handle_websocket_upgrade()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        if self._answering is not None:
            self._refuse(PIPELINED)
        if self._is_done:
            raise _RefusedInput
        self._enter(RequestPart.HEAD)
        self._num_discarded = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        super().on_headers_complete()  # raises for a target that is no path: then the request has no cycle
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__ = UnchunkedAnswer
        if not self._should_upgrade():  # which reads them again, after the body
            self.headers = []  # trailers, which arrive after the request was checked by its headers, are not among them
        self._enter(RequestPart.BODY)

    def on_body(self, body: bytes) -> None:
        self._num_unused = 0
        self._num_new_body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._enter(RequestPart.BETWEEN)
        if self._answering is not None:
            self._slots.request_arrived(self)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuses input that the parser refused, unless a callback made it refuse."""
        if not self._is_done:
            self._refuse(MALFORMED)

    def _enter(self, phase: RequestPart) -> None:
        self._phase = phase
        self._num_unused = self._num_new_body = 0
        self._arrival.cancel()

    # Output

    def on_response_complete(self) -> None:
        self._slots.request_answered(self)
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_departure()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    # The end

    @property
    def _answering(self) -> RequestResponseCycle | None:
        """The last request with complete headers whose answer is incomplete."""
        cycle = cast(RequestResponseCycle | None, self.cycle)  # None before the first, whatever the attribute's type
        return cycle if cycle is not None and not cycle.response_complete else None

    @property
    def _path(self) -> str:
        """The path of the request that is arriving, so far."""
        return "" if self._phase is RequestPart.BETWEEN else self.url.partition(b"?")[0].decode("latin-1")

    def _refuse(self, problem: Problem, *, lingers: bool = True) -> None:
        """Answer with the problem unless another answer is in progress, and parse no more input."""
        self._is_done = True
        self._arrival.cancel()
        self._refusals.note(problem)
        answering = self._answering
        if answering is None:
            is_answered = self._phase is RequestPart.BODY  # before its body arrived
            self._end(b"" if is_answered else self._refusals.as_bytes(self._path, problem), lingers)
        elif self._phase is not RequestPart.BODY:
            answering.keep_alive = False  # the request before it gets its answer first
        elif answering.response_started:
            self.transport.abort()
        else:
            answering.disconnected = True  # the application waits for the rest of the body
            answering.message_event.set()
            self._end(self._refusals.as_bytes(self._path, problem), lingers)

    def _end(self, last_words: bytes, lingers: bool) -> None:
        self.transport.write(last_words)
        if lingers and self.transport.can_write_eof():
            self.transport.write_eof()
            self._arrival.arm(LINGER_S)
        else:
            self._close()

    def _close(self) -> None:
        self._is_done = True
        self._arrival.cancel()
        self._watch_departure()
        self.transport.close()
