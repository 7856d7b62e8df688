"""What a child tells its parent, in one order, on any thread: what a step put out is told by the compute thread itself.

Waking the event loop for each step would have it take the interpreter's lock just when the compute thread builds the
next one, which then waits for it. So nobody is woken where the socket takes what is sent.

A status is read, written and sent under a lock, so that none comes behind a later one. Nothing comes behind the last
message. A batch that cannot be written would leave a hole in somebody's answer: no batch follows it, and whoever hosts
the engine hears of it, and ends it.
"""

import logging
import threading
from collections.abc import Callable

from adapters.engine_process.channel import Channel
from adapters.engine_process.messages import Begun, Status, Stopped, ToParent, batch_bytes
from adapters.engine_process.values import encoded
from application.ports.engine import Ended, EngineStatus, StepBatch
from application.services.faults import described

STATUS_AGE_S = 0.1
"""A status may be so old while batches come that end nothing."""

_logger = logging.getLogger("cairn.engine")


class Teller:
    """Any thread."""

    def __init__(
        self, channel: Channel, status: Callable[[], EngineStatus], broken: Callable[[str], object] = lambda _why: None
    ) -> None:
        """`status`: of the engine, once it is made. `broken`: called once, on the thread of a batch that cannot be
        written, with the reason."""
        self._channel = channel
        self._status = status
        self._broken = broken
        self._lock = threading.Lock()
        self._next_status_ns = 0  # by the engine's clock
        self._has_hole = self._has_ended = False

    def begin(self, start: Callable[[], object]) -> None:
        """Start the engine: whatever it tells at once comes behind Begun. Raises what `start` raises."""
        with self._lock:
            start()
            self._channel.send(encoded(Begun(self._status())))

    def batch(self, batch: StepBatch) -> None:
        """Never raises."""
        with self._lock:
            if self._has_hole or self._has_ended:
                return
            try:
                self._channel.send(batch_bytes(batch, self._status() if self._is_news(batch) else None))
                return
            except Exception as error:
                _logger.exception("what the engine put out cannot be written")
                self._has_hole, why = True, described(error)
        self._broken(why)

    def status(self) -> EngineStatus:
        """Returns it as well."""
        with self._lock:
            status = self._status()
            self._send(encoded(Status(status)))
            return status

    def beat(self) -> EngineStatus:
        """The same, but nobody who reads slowly is sent what is only news for a moment."""
        return self._status() if self._channel.num_unsent_bytes else self.status()

    def say(self, message: ToParent) -> None:
        """Anything else but the last message."""
        data = encoded(message)  # it may be long, and a step does not wait for it
        with self._lock:
            self._send(data)

    def end(self, message: Stopped) -> None:
        """The last message."""
        with self._lock:
            self._send(encoded(message))
            self._has_ended = True

    def _send(self, data: bytes) -> None:
        if not self._has_ended:
            self._channel.send(data)

    def _is_news(self, batch: StepBatch) -> bool:
        is_old = batch.at_ns >= self._next_status_ns
        if not (is_old or batch.num_left_queue or any(type(item) is Ended for _, _, item in batch.items)):
            return False
        self._next_status_ns = batch.at_ns + int(STATUS_AGE_S * 1e9)
        return True


__all__ = ("STATUS_AGE_S", "Teller")
