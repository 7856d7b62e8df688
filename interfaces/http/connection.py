"""One HTTP connection with an end to everything: uvicorn's own has no bound on headers, on time, or on unread answers.

    BETWEEN --first byte--> HEAD --headers--> BODY --last byte--> BETWEEN
       |                      |                 |
       keep-alive (uvicorn)   header_timeout_s  body_timeout_s, again and again while it keeps coming

Bounds hold before the application, and so the key, is asked. The input is fed to the parser in small pieces, so that a
read of the socket holds no more than a few requests; what follows a request that still waits for the one before it is
held back unparsed, and the socket is not read, until its turn comes. What is refused gets an answer where one can still
be given, then the connection is closed; what it sends meanwhile is thrown away.
"""

import asyncio
from typing import Any

import httptools
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from interfaces.http.body_budget import BodyBudget, HeldBodies
from interfaces.http.connection_limits import (
    FULL,
    LINGER_S,
    MALFORMED,
    MAX_DISCARDED_BYTES,
    NOT_READ,
    RESERVED_CONNECTIONS,
    TOO_LARGE,
    TOO_SLOW,
    ConnectionLimits,
)
from interfaces.http.deadline import Deadline
from interfaces.http.errors import Problem
from interfaces.http.health_only import HealthOnly
from interfaces.http.message_meter import MessageMeter, Phase
from interfaces.http.refusal import Refusals

PIECE_BYTES = 4096
"""Of input parsed at once, beside what is known to be of a body."""


class _RefusedInput(Exception):
    """Raised in a callback of the parser, which ends parsing."""


class _HoldingFlow(FlowControl):
    """The application resumes reading whenever it waits for its client; not while input is held back."""

    is_holding = False

    def resume_reading(self) -> None:
        if not self.is_holding:
            super().resume_reading()


class BoundedConnection(HttpToolsProtocol):
    """Event loop only."""

    def __init__(
        self,
        limits: ConnectionLimits,
        bodies: BodyBudget,
        refusals: Refusals,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._refusals = refusals
        self._meter = MessageMeter()
        self._bodies = HeldBodies(bodies)
        self._problem: Problem | None = None
        self._is_done = False
        self._held = b""
        self._running: RequestResponseCycle | None = None
        self._unsent_bytes = self._num_discarded = 0
        self._arrival = Deadline(self.loop, self._too_slow)
        self._departure = Deadline(self.loop, self._not_read)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._input = _HoldingFlow(transport)
        num_beyond = len(self.connections) - self._limits.max_connections
        if num_beyond > RESERVED_CONNECTIONS:
            self._refuse(FULL, lingers=False)
            return
        if num_beyond > 0:
            self.app = HealthOnly(self.app, FULL, self._refusals)
        self._arrival.arm(self._limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrival.end()
        self._departure.end()
        self._bodies.end_all()
        self._held = b""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True  # uvicorn tells only the request that came last
            self._running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    # What arrives

    def data_received(self, data: bytes) -> None:
        if self._is_done:
            self._num_discarded += len(data)
            if self._num_discarded > MAX_DISCARDED_BYTES:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        if self._input.is_holding:
            self._held += data
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        start = 0
        while start < len(data):
            if self.pipeline:
                self._held = data[start:]
                self._input.is_holding = True
                self.flow.pause_reading()
                break
            # The announced rest of a body is one piece: each piece has all that came before it copied once more.
            end = start + max(PIECE_BYTES, self._meter.rest_bytes)
            self._parse(data[start:end])
            if self._is_done:
                return
            start = end
        self._watch_arrival()

    def _parse(self, piece: bytes) -> None:
        try:
            self.parser.feed_data(piece)  # pyright: ignore[reportOptionalMemberAccess]
        except httptools.HttpParserUpgrade:
            pass  # no other protocol is spoken here: the request is answered as it stands
        except httptools.HttpParserError:
            self._refuse(self._problem or MALFORMED)
            return
        if (problem := self._meter.fed(min(len(piece), PIECE_BYTES))) is not None:
            self._refuse(problem)

    def _watch_arrival(self) -> None:
        """A deadline for what has begun to arrive, none while it is the client who waits."""
        cycle = self._latest
        if self._meter.phase is Phase.BETWEEN and cycle is not None and not cycle.response_complete:
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
        if self.flow.read_paused:  # it is we who do not read
            self._arrival.arm(self._timeout_s)
            return
        more_s = self._meter.spend_body(self._timeout_s) if self._meter.phase is Phase.BODY else 0.0
        if more_s > 0.001:
            self._arrival.arm(more_s)
        elif self._meter.phase is Phase.BETWEEN:  # nothing was asked, so there is nothing to answer
            self._close()
        else:
            self._refuse(TOO_SLOW)

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self._arrival.cancel()
        self._num_discarded = 0
        self._meter.begin()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._check(self._meter.target(len(url)))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._check(self._meter.header(name, value))
        if self._meter.phase is Phase.HEAD:  # trailers come when the request has long been judged by its headers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._arrival.cancel()
        super().on_headers_complete()  # raises for a target that is no path: then the request has no cycle
        self._meter.headers_complete()
        self._bodies.begin()
        if not self.pipeline:
            self._running = self.cycle

    def on_body(self, body: bytes) -> None:
        self._meter.body(len(body))
        if self.cycle.response_complete:
            self._num_discarded += len(body)
            self._check(TOO_LARGE if self._num_discarded > MAX_DISCARDED_BYTES else None)
        else:
            self._check(self._bodies.add(len(body)))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._arrival.cancel()
        self._meter.complete()
        super().on_message_complete()

    def _check(self, problem: Problem | None) -> None:
        if problem is not None:
            self._problem = problem
            raise _RefusedInput

    # What departs

    def on_response_complete(self) -> None:
        self._bodies.end()
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_departure()
        elif self._input.is_holding and not self.pipeline:
            self.loop.call_soon(self._feed_held)
        elif self._meter.phase is not Phase.BETWEEN:
            self._unset_keepalive_if_required()  # the rest of a request is still to come, and has a deadline

    def _feed_held(self) -> None:
        if self._is_done or self.transport.is_closing():
            return
        held, self._held = self._held, b""
        self._input.is_holding = False
        self._feed(held)
        if not self._input.is_holding:
            self.flow.resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_departure()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._departure.cancel()

    def _watch_departure(self) -> None:
        """A deadline for the client to take some of what is waiting for it."""
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._departure.arm(self._limits.write_timeout_s)

    def _not_read(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent_bytes:
            self._watch_departure()
            return
        self._refusals.note(NOT_READ)
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    # The end

    @property
    def _latest(self) -> RequestResponseCycle | None:
        """The last request whose headers are complete; None before there was one, whatever the attribute's type."""
        return self.cycle

    @property
    def _path(self) -> str:
        """Of the request that is arriving, as far as it has come."""
        return "" if self._meter.phase is Phase.BETWEEN else self.url.partition(b"?")[0].decode("latin-1")

    def _refuse(self, problem: Problem, *, lingers: bool = True) -> None:
        """Answer if nothing else is being answered, and read no more."""
        self._is_done = True
        self._arrival.cancel()
        self._refusals.note(problem)
        cycle = self._latest
        answering = cycle if cycle is not None and not cycle.response_complete else None
        is_of_cycle = self._meter.phase is Phase.BODY  # else of a request that has no cycle yet
        if self.pipeline or (is_of_cycle and answering is not None and answering.response_started):
            self.transport.abort()
        elif answering is not None and not is_of_cycle:
            answering.keep_alive = False  # the request before it gets its answer first
        else:
            if answering is not None:  # the application waits for the rest of the body
                answering.disconnected = True
                answering.message_event.set()
            is_answered = is_of_cycle and answering is None
            self._end(b"" if is_answered else self._refusals.as_bytes(self._path, problem), lingers)

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


__all__ = ("BoundedConnection",)
