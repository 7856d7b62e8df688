"""Holds the compute thread while the other end does not take what it has computed.

    open ──more than `high_bytes` unsent──► closed ──half of that or less──► open

Without it, what a slow reader leaves unread would grow in this process for as long as somebody asks.
"""

import threading

HIGH_BYTES = 4 << 20


class ReaderGate:
    """`wait` on the compute thread; the rest on the event loop."""

    def __init__(self, high_bytes: int = HIGH_BYTES) -> None:
        self._high_bytes = high_bytes
        self._is_open = threading.Event()
        self._is_open.set()
        self._is_for_good = False

    def wait(self) -> None:
        self._is_open.wait()

    def unsent(self, num_bytes: int) -> None:
        """So much waits to be sent now."""
        if num_bytes <= self._high_bytes // 2:
            self._is_open.set()
        elif num_bytes > self._high_bytes and not self._is_for_good:
            self._is_open.clear()

    def open_for_good(self) -> None:
        """The end: nothing waits any more."""
        self._is_for_good = True
        self._is_open.set()


__all__ = ("HIGH_BYTES", "ReaderGate")
