"""The machine's clocks."""

import time


class SystemClock:
    """A Clock on the operating system's."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def unix_ns(self) -> int:
        return time.time_ns()
