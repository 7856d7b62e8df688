"""A clock and ids that tests control."""

from itertools import count
from threading import Lock

from domain.ids import RequestId


class FakeClock:
    """A Clock that moves when `advance` is called, and by `tick_ns` at each reading."""

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
        """Moves the time forward. Raises ValueError for a negative number."""
        if seconds < 0:
            raise ValueError(f"seconds must not be negative, but is {seconds}")
        with self._lock:
            self._now_ns += int(seconds * 1e9)


class FakeIds:
    """An IdSource that counts: `chatcmpl-1`, `chatcmpl-2`, ..., calls `call_0...01`, ... and seeds 1, 2, ... Any
    thread: next() on a count is atomic."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._calls = count(1)
        self._seeds = count(1)

    def request_id(self, prefix: str) -> RequestId:
        return RequestId(f"{prefix}-{next(self._ids)}")

    def call_id(self) -> str:
        return f"call_{next(self._calls):024x}"

    def seed(self) -> int:
        return next(self._seeds)
