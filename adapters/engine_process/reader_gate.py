"""Holds the compute thread while the other end does not read what it has told.

    open ──more than `high_bytes` unsent──► closed ──half of that or less, or the end──► open

Without it, what a slow reader leaves unread would grow in this process for as long as somebody asks. With it there are
never more than `high_bytes` and what one turn tells.
"""

import threading
from collections.abc import Callable

HIGH_BYTES = 4 << 20


def _nothing() -> int:
    return 0


class ReaderGate:
    """`wait` on the compute thread, which tells what it computes before its next turn; the rest on the event loop."""

    def __init__(self, high_bytes: int = HIGH_BYTES) -> None:
        self._high_bytes = high_bytes
        self._num_unsent: Callable[[], int] = _nothing
        self._changed = threading.Condition()
        self._is_for_good = False

    def connect(self, num_unsent: Callable[[], int]) -> None:
        """Before the first turn. `num_unsent`: bytes that wait to be sent; any thread."""
        self._num_unsent = num_unsent

    def wait(self) -> None:
        """A turn begins: all that came of earlier ones was told."""
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


__all__ = ("HIGH_BYTES", "ReaderGate")
