"""The clocks and the entropy of the operating system."""

import secrets
import time

from domain.ids import RequestId


class SystemClock:
    """A Clock of the operating system."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def unix_ns(self) -> int:
        return time.time_ns()


class RandomIds:
    """An IdSource of unguessable ids and seeds."""

    def request_id(self, prefix: str) -> RequestId:
        return RequestId(f"{prefix}-{secrets.token_hex(12)}")

    def call_id(self) -> str:
        return f"call_{secrets.token_hex(12)}"

    def seed(self) -> int:
        return secrets.randbits(63)
