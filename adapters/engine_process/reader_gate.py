"""Holds the compute thread while the event loop, or the other end behind it, does not take what it has computed.

    open ──more than `high_bytes` unsent────────────────► closed ──half of that or less────► open
    open ──`MAX_TURNS` turns that the loop has not seen──► closed ──it has seen later ones──► open

Without the first, what a slow reader leaves unread would grow in this process for as long as somebody asks; without the
second, what the loop itself has not come to. So there are never more than `high_bytes` and the batches of MAX_TURNS.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

HIGH_BYTES = 4 << 20

MAX_TURNS = 8
ASKED_EVERY = 4
"""The loop is asked every so many turns whether it has seen them: a wake-up each would cost as much as a batch."""

CallSoon: TypeAlias = Callable[[Callable[[], None]], object]
"""As `call_soon_threadsafe`: what is called comes in the order of the calls, batches among them."""


class ReaderGate:
    """`wait` on the compute thread; the rest on the event loop."""

    def __init__(self, high_bytes: int = HIGH_BYTES) -> None:
        self._high_bytes = high_bytes
        self._call_soon: CallSoon = lambda _call: None
        self._changed = threading.Condition()
        self._num_begun = self._num_asked = 0  # turns; of the compute thread
        self._num_seen = 0
        self._is_full = False
        self._is_for_good = False

    def connect(self, call_soon: CallSoon) -> None:
        """Before the first turn."""
        self._call_soon = call_soon

    def wait(self) -> None:
        """A turn begins: all that came of earlier ones was handed over."""
        if self._num_begun - self._num_asked >= ASKED_EVERY:
            self._num_asked = self._num_begun
            with suppress(RuntimeError):  # the loop was closed, and nobody is left to hold anything for
                self._call_soon(partial(self._seen, self._num_begun))
        if self._is_held:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_held)
        self._num_begun += 1

    def unsent(self, num_bytes: int) -> None:
        """So much waits to be sent now."""
        if self._is_full and num_bytes <= self._high_bytes // 2:
            self._change(is_full=False)
        elif num_bytes > self._high_bytes:
            self._is_full = True

    def open_for_good(self) -> None:
        """The end: nothing waits any more."""
        self._is_for_good = True
        self._change(is_full=False)

    @property
    def _is_held(self) -> bool:
        is_ahead = self._num_begun - self._num_seen >= MAX_TURNS
        return (self._is_full or is_ahead) and not self._is_for_good

    def _seen(self, num_turns: int) -> None:
        """The loop has taken what came of so many turns."""
        self._num_seen = num_turns
        self._change(is_full=self._is_full)

    def _change(self, *, is_full: bool) -> None:
        with self._changed:
            self._is_full = is_full
            self._changed.notify()


__all__ = ("HIGH_BYTES", "MAX_TURNS", "CallSoon", "ReaderGate")
