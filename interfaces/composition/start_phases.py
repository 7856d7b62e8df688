"""What a start spent its time on, phase by phase, for one line in the log."""

from collections.abc import Callable
from time import perf_counter


class StartPhases:
    """Begins when it is made."""

    def __init__(self, now_s: Callable[[], float] = perf_counter) -> None:
        self._now_s = now_s
        self._began_s = self._last_s = now_s()
        self._done: list[tuple[str, float]] = []

    def end(self, phase: str) -> None:
        """`phase` is what has been done since the one before."""
        now_s = self._now_s()
        self._done.append((phase, now_s - self._last_s))
        self._last_s = now_s

    def __str__(self) -> str:
        """`9.3s (imports 7.1s, device 2.0s, store 0.2s)`"""
        phases = ", ".join(f"{phase} {seconds:.1f}s" for phase, seconds in self._done)
        return f"{self._last_s - self._began_s:.1f}s ({phases})"


__all__ = ("StartPhases",)
