"""Time as a port, so that tests own it."""

from typing import Protocol


class Clock(Protocol):
    """Any thread."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds, for durations."""
        ...

    def thread_ns(self) -> int:
        """Nanoseconds for which the calling thread has had a processor, to tell work from waiting."""
        ...

    def unix_ns(self) -> int:
        """Nanoseconds since the Unix epoch, for timestamps that leave the process."""
        ...


__all__ = ("Clock",)
