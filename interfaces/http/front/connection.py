"""One HTTP connection with bounds on headers, time and unread answers, which uvicorn's protocol class lacks.

    BETWEEN --first byte--> HEAD --headers--> BODY --last byte--> BETWEEN
       |                      |                 |
       keep-alive (uvicorn)   header_timeout_s  body_timeout_s, extended while the body keeps coming

Bounds apply before the application looks at the request, and so before its key. The input is fed to the parser in small
pieces, so that a read of the socket completes no more than a few things before they are counted. A refused request is
answered where that is still possible, then the connection is closed and its further input thrown away. A request that
is sent before the last one was answered closes the connection after that answer: no client in use pipelines."""

import asyncio
from email.utils import formatdate
from typing import Any, cast

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from interfaces.http.errors import Problem
from interfaces.http.front.connection_limits import (
    FULL,
    LINGER_S,
    MALFORMED,
    MAX_DISCARDED_BYTES,
    NOT_READ,
    PIPELINED,
    TOO_LARGE,
    TOO_SLOW,
    ConnectionLimits,
    ConnectionSlots,
    Deadline,
    MessageMeter,
    Phase,
    Slot,
    more_time_s,
    shared_address,
)
from interfaces.http.front.guard import HealthOnly, Refusals

PIECE_BYTES = 4096
"""Size of the pieces in which input is parsed, except the announced rest of a body."""


class _RefusedInput(Exception):
    """The exception that a callback raises to stop the parser."""


class BoundedConnection(HttpToolsProtocol):
    """A connection with limits on headers, bodies, time and unread answers. Event loop only."""

    def __init__(
        self,
        limits: ConnectionLimits,
        slots: ConnectionSlots,
        refusals: Refusals,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.address: str | None = None
        self._limits = limits
        self._slots = slots
        self._refusals = refusals
        self._meter = MessageMeter()
        self._problem: Problem | None = None
        self._is_done = False
        self._unsent_bytes = self._num_discarded = 0
        self._arrival = Deadline(self.loop, self._too_slow)
        self._departure = Deadline(self.loop, self._not_read)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = shared_address(self.client[0] if self.client else None)
        slot = self._slots.enter(self)
        if slot is Slot.NONE:
            self._refuse(FULL, lingers=False)
            return
        if slot is Slot.HEALTH_ONLY:
            self.app = HealthOnly(self.app, FULL, self._refusals)
        self._arrival.arm(self._limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._slots.leave(self)
        self._arrival.end()
        self._departure.end()
        super().connection_lost(exc)

    def evict(self) -> None:
        """Closes to free the slot (see SlotHolder)."""
        if self._meter.phase is Phase.BETWEEN:  # no request, so no answer
            self._refusals.note(FULL)
            self._close()
        else:
            self._refuse(FULL, lingers=False)

    # Input

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        start = 0
        while start < len(data) and not self._is_done:
            # The announced rest of a body is one piece: each piece has all that came before it copied once more.
            end = start + max(PIECE_BYTES, self._meter.rest_bytes)
            self._parse(data[start:end])
            start = end
        if not self._is_done:
            self._watch_arrival()
        elif self._discards(len(data)):
            self.transport.abort()

    def _parse(self, piece: bytes) -> None:
        try:
            self.parser.feed_data(piece)  # pyright: ignore[reportOptionalMemberAccess]
        except httptools.HttpParserUpgrade:
            pass  # no other protocol is spoken here: the request is answered as it stands
        except httptools.HttpParserError:
            self._refuse(self._problem or MALFORMED)
            return
        if (problem := self._meter.fed(len(piece))) is not None:
            self._refuse(problem)

    def _discards(self, num_bytes: int) -> bool:
        """Counts discarded input. Returns whether it exceeds MAX_DISCARDED_BYTES."""
        self._num_discarded += num_bytes
        return self._num_discarded > MAX_DISCARDED_BYTES

    def _watch_arrival(self) -> None:
        """Arm the deadline of a request that is arriving; cancel it while the client waits for an answer."""
        if self._meter.phase is Phase.BETWEEN and self._answering is not None:
            self._arrival.cancel()
        elif not self._arrival.is_armed:
            self._arrival.arm(self._timeout_s)

    @property
    def _timeout_s(self) -> float:
        limits = self._limits
        return limits.body_timeout_s if self._meter.phase is Phase.BODY else limits.header_timeout_s

    def _too_slow(self) -> None:
        if self._is_done:
            self.transport.abort()
            return
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # the application has not read the input
            self._arrival.arm(self._timeout_s)
            return
        more_s = self._meter.spend_body(self._timeout_s) if self._meter.phase is Phase.BODY else 0.0
        if more_s > 0.001:
            self._arrival.arm(more_s)
        elif self._meter.phase is Phase.BETWEEN:  # no request, so no answer
            self._close()
        else:
            self._refuse(TOO_SLOW)

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self._check(PIPELINED if self._answering is not None else None)
        self._arrival.cancel()
        self._num_discarded = 0
        self._meter.begin()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._check(self._meter.target(len(url)))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._check(self._meter.header(name, value))
        if self._meter.phase is Phase.HEAD:  # trailers arrive after the request was checked by its headers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._arrival.cancel()
        self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        super().on_headers_complete()  # raises for a target that is no path: then the request has no cycle
        self._meter.headers_complete()

    def on_body(self, body: bytes) -> None:
        self._meter.body(len(body))
        if self.cycle.response_complete:
            self._check(TOO_LARGE if self._discards(len(body)) else None)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._arrival.cancel()
        self._meter.complete()
        if not self.cycle.response_complete:
            self._slots.request_arrived(self)
        super().on_message_complete()

    def _check(self, problem: Problem | None) -> None:
        if problem is not None:
            self._problem = problem
            raise _RefusedInput

    # Output

    def on_response_complete(self) -> None:
        self._slots.request_answered(self)
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_departure()
        elif self._meter.phase is not Phase.BETWEEN:
            self._unset_keepalive_if_required()  # the rest of a request is still to come, and has a deadline

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_departure()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._departure.cancel()

    def _watch_departure(self) -> None:
        """Arm the deadline until which the client must read unsent output; MIN_BYTES_S extends it."""
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._departure.arm(self._limits.write_timeout_s)

    def _not_read(self) -> None:
        unsent_bytes = self.transport.get_write_buffer_size()
        more_s = more_time_s(self._unsent_bytes - unsent_bytes, self._limits.write_timeout_s)
        self._unsent_bytes = unsent_bytes
        if more_s > 0.001:
            self._departure.arm(more_s)
            return
        self._refusals.note(NOT_READ)
        self.transport.abort()

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
        return "" if self._meter.phase is Phase.BETWEEN else self.url.partition(b"?")[0].decode("latin-1")

    def _refuse(self, problem: Problem, *, lingers: bool = True) -> None:
        """Answer with the problem unless another answer is in progress, and parse no more input."""
        self._is_done = True
        self._arrival.cancel()
        self._refusals.note(problem)
        answering = self._answering
        if answering is None:
            is_answered = self._meter.phase is Phase.BODY  # before its body arrived
            self._end(b"" if is_answered else self._refusals.as_bytes(self._path, problem), lingers)
        elif self._meter.phase is not Phase.BODY:
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
