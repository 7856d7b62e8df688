"""Time as a port, so that tests own it."""

from typing import Protocol


class Clock(Protocol):
    """Any thread."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds, for durations."""
        ...

    def unix_ns(self) -> int:
        """Nanoseconds since the Unix epoch, for timestamps that leave the process."""
        ...
