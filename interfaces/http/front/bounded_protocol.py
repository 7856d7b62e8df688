"""The slot of a connection of HTTP or WebSockets, the timer of its input, and the bound on the time that a client may
take to read what was sent to it."""

import asyncio
from typing import Any

from interfaces.http.front.connection_limits import (
    NOT_READ,
    ConnectionLimits,
    ConnectionSlots,
    Deadline,
    Slot,
    more_time_s,
    shared_address,
)
from interfaces.http.front.guard import Refusals


class BoundedProtocol(asyncio.Protocol):
    """A mixin before a protocol of uvicorn, which has `_too_slow` for late input and `evict`. Event loop only."""

    transport: asyncio.Transport
    client: tuple[str, int] | None
    loop: asyncio.AbstractEventLoop

    def __init__(self, limits: ConnectionLimits, slots: ConnectionSlots, refusals: Refusals, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self.address: str | None = None
        self._limits = limits
        self._slots = slots
        self._refusals = refusals
        self._num_unsent = 0
        self._arrival = Deadline(self.loop, self._too_slow)
        self._departure = Deadline(self.loop, self._not_read)

    def evict(self) -> None:
        """Closes to free the slot (see SlotHolder)."""
        raise NotImplementedError

    def _too_slow(self) -> None:
        raise NotImplementedError

    def connection_lost(self, exc: Exception | None) -> None:
        self._slots.leave(self)
        self._end_deadlines()
        super().connection_lost(exc)

    def _enter_slot(self) -> Slot:
        self.address = shared_address(self.client[0] if self.client else None)
        return self._slots.enter(self)

    def _end_deadlines(self) -> None:
        self._arrival.end()
        self._departure.end()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_departure()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._departure.cancel()

    def _watch_departure(self) -> None:
        """Arm the deadline until which the client must read unsent output; MIN_BYTES_S extends it."""
        self._num_unsent = self.transport.get_write_buffer_size()
        self._departure.arm(self._limits.write_timeout_s)

    def _not_read(self) -> None:
        num_unsent = self.transport.get_write_buffer_size()
        more_s = more_time_s(self._num_unsent - num_unsent, self._limits.write_timeout_s)
        self._num_unsent = num_unsent
        if more_s > 0.001:
            self._departure.arm(more_s)
            return
        self._refusals.note(NOT_READ)
        self.transport.abort()
