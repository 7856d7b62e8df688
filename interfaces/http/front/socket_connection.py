"""One WebSocket with the bounds of an HTTP connection: its slot, the size, memory and time of a message that arrives,
and the time in which the client reads. `connection` hands it over once the head of its handshake was read.

    handshake --accepted--> waiting --message--> answering --answered--> waiting
    header_timeout_s         |                    keeps its slot
                             may be closed to free its slot; body_timeout_s from the first byte of a message

The memory of a message counts as that of a body (`BodyBudget`) while it arrives. Idle connections are pinged, and
closed where no pong comes. The tests of this class name the behaviour of uvicorn and websockets that it rests on."""

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request

from domain.host_name import network_of
from interfaces.http.errors import Problem
from interfaces.http.front.bounded_protocol import BoundedProtocol
from interfaces.http.front.connection_limits import (
    FULL,
    MALFORMED,
    TOO_SLOW,
    ConnectionLimits,
    ConnectionSlots,
    Slot,
    more_time_s,
)
from interfaces.http.front.guard import HealthOnly, Refusals
from interfaces.http.incoming.request_context import CONNECTION, BodiesFull, BodyBudget


class BoundedSocket(BoundedProtocol, WebSocketsSansIOProtocol):
    """A WebSocket with limits. Event loop only. It is also the SocketConnection of the application."""

    def __init__(
        self,
        limits: ConnectionLimits,
        slots: ConnectionSlots,
        refusals: Refusals,
        bodies: BodyBudget,
        **of_uvicorn: Any,
    ) -> None:
        super().__init__(limits, slots, refusals, **of_uvicorn)
        self._bodies = bodies
        self._held_bytes = self._num_new = 0
        self._fragments = bytearray()
        """Those of the message that arrives, but the first."""
        self._is_answering = self._is_ending = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._enter_slot() is not Slot.ALL_REQUESTS:
            self.app = HealthOnly(self.app, FULL, self._refusals)
        self._arrival.arm(self._limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        super().connection_lost(exc)

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.handshake_initiated and not self.handshake_complete:
            self.scope.setdefault("state", {})[CONNECTION] = self

    # Input

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None:
            self._refusals.note(MALFORMED)
            own_words = b"".join(self.conn.data_to_send())
            self.transport.write(own_words or self._refusals.as_bytes("/", MALFORMED))
            self._watch_departure()
            self.transport.close()
        elif self.handshake_complete and not self.close_sent:
            self._watch_arrival(len(data))

    def handle_cont(self, event: Frame) -> None:
        """Joins fragments as they arrive: kept apart, those of a byte take several times the memory that is counted."""
        self._fragments += event.data
        if event.fin:
            self.frames.append(bytes(self._fragments))
            self._fragments.clear()
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Leaves pongs out while the client does not read them: their buffer has no other bound."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def _watch_arrival(self, num_bytes: int) -> None:
        """Counts the bytes of an incomplete message, and arms its deadline."""
        if not (self.frames or self.conn.reader.buffer):
            self._arrival.cancel()
            self._release()
            return
        self._num_new += num_bytes
        try:
            self._bodies.take(self._owner, num_bytes)
        except BodiesFull as error:
            self._end(CloseCode.TRY_AGAIN_LATER, Problem(503, error.code, error.message))
            return
        self._held_bytes += num_bytes
        if not self._arrival.is_armed:
            self._arrival.arm(self._limits.body_timeout_s)

    @property
    def _owner(self) -> str:
        return f"address {network_of(self.client[0]) if self.client else ''}"

    def _release(self) -> None:
        held, self._held_bytes, self._num_new = self._held_bytes, 0, 0
        if held:
            self._bodies.release(self._owner, held)

    def _too_slow(self) -> None:
        more_s, self._num_new = more_time_s(self._num_new, self._limits.body_timeout_s), 0
        if self.handshake_complete and more_s > 0.001:
            self._arrival.arm(more_s)
        else:
            self._end(CloseCode.POLICY_VIOLATION, TOO_SLOW)

    # The application's side

    def accepted(self) -> None:
        """The handshake was answered."""
        self._arrival.cancel()

    def request_arrived(self) -> None:
        """A message is being answered."""
        self._is_answering = True
        self._slots.request_arrived(self)

    def request_answered(self) -> None:
        """No message waits for its answer."""
        self._is_answering = False
        self._slots.request_answered(self)
        if self._is_ending:
            super().shutdown()

    # The end

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        if not self.disconnected:
            self._watch_departure()

    def evict(self) -> None:
        self._end(CloseCode.TRY_AGAIN_LATER, FULL)

    def shutdown(self) -> None:
        """Ends the connection, after the answer that is being sent."""
        self._is_ending = True
        if not self._is_answering:
            super().shutdown()

    def _end(self, code: int, problem: Problem) -> None:
        self._refusals.note(problem)
        self._arrival.cancel()
        self._release()
        if self.handshake_complete and not self.close_sent:
            self.conn.send_close(code, problem.message)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code})
        self._watch_departure()
        self.transport.close()
