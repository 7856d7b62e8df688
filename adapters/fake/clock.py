"""A clock that stands still until it is told to move."""

from threading import Lock


class FakeClock:
    """A Clock. `tick_ns`: how far each reading moves it by itself (0: not at all)."""

    def __init__(
        self, start_ns: int = 1_000_000_000, unix_offset_ns: int = 1_700_000_000_000_000_000, tick_ns: int = 0
    ):
        self._lock = Lock()
        self._now_ns = start_ns
        self._unix_offset_ns = unix_offset_ns
        self._tick_ns = tick_ns

    def now_ns(self) -> int:
        with self._lock:
            self._now_ns += self._tick_ns
            return self._now_ns

    def unix_ns(self) -> int:
        return self._unix_offset_ns + self.now_ns()

    def advance(self, seconds: float) -> None:
        """Move time forward."""
        if seconds < 0:
            raise ValueError("time does not run backwards")
        with self._lock:
            self._now_ns += int(seconds * 1e9)
