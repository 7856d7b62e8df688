"""When the store is not asked any more, and when it is asked again.

A call that hangs on its volume cannot be stopped. So as long as a read is late the store counts as stuck: no read is
started, those that wait give up, and everybody does with what is in memory. When it returns after all, the store is
tried by one read at a time. Time is looked at when somebody looks at a read: there are no timers.

    answers ──a read is late──► stuck ──it returns──► suspect: one read at a time ──that one is in time──► answers
                                  ▲                        │
                                  └────it is late too──────┘
"""

from collections.abc import Hashable
from threading import Lock


class StoreBreaker:
    """Any thread. `timeout_s`: what a read may take. Times are nanoseconds of one clock."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_ns = int(timeout_s * 1e9)
        self._lock = Lock()
        self._running: dict[Hashable, int] = {}
        self._late: set[Hashable] = set()
        self._is_suspect = False
        self._probe: Hashable = None

    def look(self, now_ns: int) -> tuple[bool, int]:
        """Whether a read is late, and how many are that nobody had noticed before."""
        with self._lock:
            late = {read for read, began_ns in self._running.items() if began_ns < now_ns - self._timeout_ns}
            num_fresh = len(late - self._late)
            self._late |= late
            self._is_suspect |= num_fresh > 0
            return bool(late), num_fresh

    def admits(self, read: Hashable) -> bool:
        """Whether one more may be started, while none is late."""
        with self._lock:
            if self._is_suspect and self._probe is not None:
                return False
            self._probe = read if self._is_suspect else None
            return True

    def began(self, read: Hashable, now_ns: int) -> None:
        with self._lock:
            self._running[read] = now_ns

    def ended(self, read: Hashable) -> None:
        """It has run, or never will."""
        with self._lock:
            has_run = self._running.pop(read, None) is not None
            if read is self._probe:
                self._is_suspect &= not has_run or read in self._late
                self._probe = None
            self._late.discard(read)
