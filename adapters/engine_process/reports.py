"""The child's reports to its parent, in one order, from any thread; and the gate that holds them back.

What a step put out is reported by the compute thread itself: waking the event loop for each step would have it take the
interpreter's lock just when the compute thread builds the next step, which then waits for it. So the loop is woken only
where the socket does not take what is sent.

A status is read, written and sent under a lock, so that none comes behind a later one. Nothing comes behind the last
message. A batch that cannot be written would leave a hole in an answer: no batch follows it, and the host ends the
engine.

The gate holds the compute thread while the parent does not read what was reported:

    open ──more than `high_bytes` unsent──► closed ──half of that or less, or the end──► open

Without it, unread reports would grow in this process as long as requests come. With it there are never more than
`high_bytes` and the reports of one turn.
"""

import logging
import threading
from collections.abc import Callable

from adapters.engine_process.channel import Channel
from adapters.engine_process.messages import Begun, Status, Stopped, ToParent, batch_bytes, encoded
from application.ports.engine import Ended, EngineStatus, StepBatch
from application.services.faults import described

STATUS_AGE_S = 0.1
"""A status may be so old while batches come that end nothing."""

HIGH_BYTES = 4 << 20

_logger = logging.getLogger("cairn.engine")


class Reports:
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
        """Start the engine: its first report comes behind Begun. Raises what `start` raises."""
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
        """As `status`, but not to a parent that reads slowly: it is news for a moment only."""
        return self._status() if self._channel.num_unsent_bytes else self.status()

    def say(self, message: ToParent) -> None:
        """Any other message but the last one."""
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


def _nothing() -> int:
    return 0


class ReaderGate:
    """`wait` on the compute thread, which reports what it computed before its next turn; the rest on the event loop."""

    def __init__(self, high_bytes: int = HIGH_BYTES) -> None:
        self._high_bytes = high_bytes
        self._num_unsent: Callable[[], int] = _nothing
        self._changed = threading.Condition()
        self._is_for_good = False

    def connect(self, num_unsent: Callable[[], int]) -> None:
        """Before the first turn. `num_unsent`: bytes that wait to be sent; any thread."""
        self._num_unsent = num_unsent

    def wait(self) -> None:
        """A turn begins: all that came of earlier ones was reported."""
        if self._num_unsent() > self._high_bytes and not self._is_for_good:
            with self._changed:
                self._changed.wait_for(lambda: self._is_for_good or self._num_unsent() <= self._high_bytes // 2)

    def moved(self) -> None:
        """Less waits to be sent now."""
        with self._changed:
            self._changed.notify()

    def open_for_good(self) -> None:
        """The end: nothing waits any more."""
        self._is_for_good = True
        self.moved()
