"""The child's reports to its parent, in one order, from any thread, and the bound on unread ones.

The compute thread sends the output of a step itself: waking the event loop for each step would have it take the
interpreter's lock just when the compute thread builds the next step, which then waits for it. So the loop is woken only
where the socket does not take what is sent.

A status is read, encoded and sent under a lock, so that statuses arrive in order. No message follows the last one. A
batch that cannot be written would leave a hole in an answer: no batch follows it, and the host ends the engine.

`hold` keeps the compute thread waiting while the parent does not read:

    running ──more than HIGH_BYTES unsent──► held ──half of that or less, or the end──► running

so that there are never more unread reports in this process than HIGH_BYTES and those of one turn.
"""

import logging
import threading
from collections.abc import Callable

from adapters.engine_process.channel import Channel
from adapters.engine_process.messages import Begun, Status, Stopped, ToParent, batch_bytes, encoded
from application.ports.engine import Ended, EngineStatus, StepBatch
from application.services.faults import described

STATUS_AGE_S = 0.1
"""The age that a status may reach while batches report no end."""

HIGH_BYTES = 4 << 20
"""Unsent bytes above which the compute thread is held."""

_logger = logging.getLogger("cairn.engine")


class Reports:
    """The sender of a child's reports. Any thread."""

    def __init__(
        self, channel: Channel, status: Callable[[], EngineStatus], broken: Callable[[str], object] = lambda _why: None
    ) -> None:
        """`status`: reads the engine's status, once it is made. `broken`: called once with the reason, on the thread of
        a batch that cannot be encoded."""
        self._channel = channel
        self._status = status
        self._broken = broken
        self._lock = threading.Lock()
        self._next_status_ns = 0  # by the engine's clock
        self._has_hole = self._has_ended = False
        self._moved, self._is_open = threading.Condition(), False

    def begin(self, start: Callable[[], object]) -> None:
        """Starts the engine so that its first report follows Begun. Raises the error of `start`."""
        with self._lock:
            start()
            self._channel.send(encoded(Begun(self._status())))

    def batch(self, batch: StepBatch) -> None:
        """Sends a batch, with a status where that is due. Never raises."""
        with self._lock:
            if self._has_hole or self._has_ended:
                return
            try:
                self._channel.send(batch_bytes(batch, self._status() if self._is_news(batch) else None))
                return
            except Exception as error:
                _logger.exception("the engine's output cannot be encoded")
                self._has_hole, why = True, described(error)
        self._broken(why)

    def status(self) -> EngineStatus:
        """Sends the engine's status and returns it."""
        with self._lock:
            status = self._status()
            self._send(encoded(Status(status)))
            return status

    def beat(self) -> EngineStatus:
        """Sends the status as a heartbeat, but not to a parent that reads slowly: it would be outdated on arrival."""
        return self._status() if self._channel.num_unsent_bytes else self.status()

    def say(self, message: ToParent) -> None:
        """Sends any other message. Nothing follows Stopped."""
        data = encoded(message)  # outside the lock: it may be long, and a step must not wait for it
        with self._lock:
            self._send(data)
            self._has_ended |= isinstance(message, Stopped)

    def _send(self, data: bytes) -> None:
        if not self._has_ended:
            self._channel.send(data)

    def _is_news(self, batch: StepBatch) -> bool:
        is_old = batch.at_ns >= self._next_status_ns
        if not (is_old or batch.num_left_queue or any(type(item) is Ended for _, _, item in batch.items)):
            return False
        self._next_status_ns = batch.at_ns + int(STATUS_AGE_S * 1e9)
        return True

    # ---- back-pressure -----------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Waits while the parent does not read. Called by the compute thread before each turn, after it reported
        everything that it computed."""
        if self._channel.num_unsent_bytes > HIGH_BYTES and not self._is_open:
            with self._moved:
                self._moved.wait_for(lambda: self._is_open or self._channel.num_unsent_bytes <= HIGH_BYTES // 2)

    def moved(self) -> None:
        """Notes that fewer bytes wait to be sent. Event loop only."""
        with self._moved:
            self._moved.notify()

    def release(self) -> None:
        """Ends `hold` for good, because the engine stops. Event loop only."""
        self._is_open = True
        self.moved()
