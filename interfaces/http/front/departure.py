"""The bound on the time that a client may take to read what was sent to it, for connections of HTTP and WebSockets."""

import asyncio

from interfaces.http.front.connection_limits import NOT_READ, ConnectionLimits, Deadline, more_time_s
from interfaces.http.front.guard import Refusals


class BoundedDeparture(asyncio.Protocol):
    """A mixin before a protocol of uvicorn. Event loop only."""

    transport: asyncio.Transport

    def _departs(self, limits: ConnectionLimits, refusals: Refusals, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the mixin up."""
        self._limits = limits
        self._refusals = refusals
        self._num_unsent = 0
        self._departure = Deadline(loop, self._not_read)

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
