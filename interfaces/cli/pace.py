"""How far some work is, how fast it goes, and how long it will take. Sans-io: whoever has a clock feeds it."""

from collections import deque

WINDOW_S = 20.0
"""The rate is that of the last so many seconds: work that slows down must not look quick for what it did before."""

MIN_SPAN_S = 0.5


class Pace:
    """`total` None or 0: not known. Times are monotonic seconds and never go back."""

    def __init__(self, total: int | None, now_s: float) -> None:
        self.total = total or None
        self.done = 0
        self._seen: deque[tuple[float, int]] = deque([(now_s, 0)])

    def reach(self, done: int, now_s: float) -> None:
        """`done` in all; work that is done never becomes less."""
        self.done = max(self.done, done)
        self._seen.append((now_s, self.done))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - WINDOW_S:
            self._seen.popleft()

    @property
    def share(self) -> float | None:
        """0 to 1; what was estimated too low counts as whole. None where nobody knows."""
        return None if self.total is None else min(1.0, self.done / self.total)

    @property
    def rate(self) -> float | None:
        """A second; None before that can be told."""
        (start_s, before), (end_s, done) = self._seen[0], self._seen[-1]
        return (done - before) / (end_s - start_s) if end_s - start_s >= MIN_SPAN_S else None

    @property
    def left_s(self) -> float | None:
        """Seconds until it is whole, at this rate; None where nobody knows."""
        if self.total is None or not self.rate:
            return None
        return max(0, self.total - self.done) / self.rate


def told_time(seconds: float) -> str:
    """`9s`, `2m 05s`, `3h 12m`, `5d 3h`: two units at most."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600}h"


def told_latency(seconds: float) -> str:
    """`18.2ms`, `4.12s`, `2m 05s`."""
    if seconds < 1:
        return f"{seconds * 1e3:.1f}ms"
    return f"{seconds:.2f}s" if seconds < 60 else told_time(seconds)


__all__ = ("MIN_SPAN_S", "WINDOW_S", "Pace", "told_latency", "told_time")
