"""One timer of a connection, on the event loop: armed for something, moved or cancelled, and told when it is due."""

import asyncio
from collections.abc import Callable

from interfaces.http.connection_limits import STALL_S


class Deadline:
    """`expired` is called once for each time it was armed, unless cancelled or armed anew before. When the event loop
    stood still meanwhile it gets another second: what would have met the deadline may not have been read yet."""

    __slots__ = ("_due_s", "_expired", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._handle: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    @property
    def is_armed(self) -> bool:
        return self._handle is not None

    def arm(self, timeout_s: float) -> None:
        """Anew, from now on."""
        self.cancel()
        self._due_s = self._loop.time() + timeout_s
        self._handle = self._loop.call_later(timeout_s, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def end(self) -> None:
        """For good: nobody is told any more. Who owns it and is told by it is free without the collector then."""
        self.cancel()
        self._expired = _nothing

    def _fire(self) -> None:
        self._handle = None
        if self._loop.time() - self._due_s > STALL_S:
            self.arm(STALL_S)
        else:
            self._expired()


def _nothing() -> None:
    pass


__all__ = ("Deadline",)
