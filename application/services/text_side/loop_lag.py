"""How late the event loop is: a mark is put into its line every now and then, and it is looked when it comes out.

Asked from one thread, answered on the loop's. A loop that is blocked answers nothing: the age of the mark that waits
is its lag then.
"""

from collections.abc import Callable
from typing import TypeAlias

from application.ports.clock import Clock
from domain.engine_health import EVENT_LOOP, EngineHealth

CallSoon: TypeAlias = Callable[[Callable[[], None]], object]
"""Puts a call into the loop's line, from any thread. Raises RuntimeError once the loop is closed."""


class LoopLag:
    def __init__(self, clock: Clock, call_soon: CallSoon) -> None:
        self._clock = clock
        self._call_soon = call_soon
        self._asked_ns: int | None = None
        self._answered_s = 0.0

    def look(self) -> None:
        """Put a mark into the line, unless one waits in it."""
        if self._asked_ns is None:
            self._asked_ns = self._clock.now_ns()
            try:
                self._call_soon(self._answered)
            except RuntimeError:  # closed: nobody is left to be late
                self._asked_ns = None

    @property
    def lag_s(self) -> float:
        """Of the mark that waits, or of the last one where that took longer. Any thread."""
        asked_ns = self._asked_ns
        waited_s = 0.0 if asked_ns is None else (self._clock.now_ns() - asked_ns) / 1e9
        return max(waited_s, self._answered_s)

    def health(self, now_ns: int, stuck_after_s: float) -> EngineHealth:
        """Of the loop, as one tells that of the engine."""
        asked_ns = self._asked_ns
        is_stuck = asked_ns is not None and now_ns - asked_ns >= stuck_after_s * 1e9
        return EngineHealth(
            step_age_s=self.lag_s,
            num_waiting=0,
            num_running=0,
            num_calls=0,
            is_stuck=is_stuck,
            stuck_in=EVENT_LOOP if is_stuck else "",
            stuck_since_ns=asked_ns if is_stuck else None,
        )

    def _answered(self) -> None:
        asked_ns, self._asked_ns = self._asked_ns, None
        if asked_ns is not None:
            self._answered_s = (self._clock.now_ns() - asked_ns) / 1e9


__all__ = (
    "CallSoon",
    "LoopLag",
)
