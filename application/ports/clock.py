"""Time, identifiers and seeds as ports, so that tests decide them."""

from typing import Protocol

from domain.ids import RequestId


class Clock(Protocol):
    """Any thread."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds, for durations."""
        ...

    def unix_ns(self) -> int:
        """Nanoseconds since the Unix epoch, for timestamps that leave the process."""
        ...


class IdSource(Protocol):
    """Identifiers and seeds that must not repeat. Any thread."""

    def request_id(self, prefix: str) -> RequestId:
        """A new id such as `chatcmpl-5f0c...`; unguessable."""
        ...

    def call_id(self) -> str:
        """A new id of a tool call: `call_` and 24 hexadecimal digits; unguessable."""
        ...

    def seed(self) -> int:
        """A fresh sampling seed, 0 <= seed < 2**63."""
        ...
