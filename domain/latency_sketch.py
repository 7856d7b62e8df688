"""How long many things took, in bounded memory: how many of them fell into each of some 500 buckets.

Each bucket is 4 % wider than the one before it, from 10 us to one hour, so that a quantile is off by 2 % at most
whatever the distribution; what is shorter or longer counts as the shortest or the longest. Sketches add up.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate

SHORTEST_S, LONGEST_S = 1e-5, 3600.0
_LOG_WIDTH = math.log(1.04)
_LAST = math.ceil(math.log(LONGEST_S / SHORTEST_S) / _LOG_WIDTH)

MAX_ERROR = 1.04**0.5 - 1
"""Of a quantile, relative to the true one."""


class LatencySketch:
    """Not thread-safe."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    @classmethod
    def of(cls, sketches: "Iterable[LatencySketch]") -> "LatencySketch":
        """All of them as one."""
        whole = cls()
        for sketch in sketches:
            whole._counts.update(sketch._counts)
        return whole

    @property
    def num(self) -> int:
        return self._counts.total()

    @property
    def num_buckets(self) -> int:
        """In use; for leak checks."""
        return len(self._counts)

    def add(self, seconds: float, times: int = 1) -> None:
        self._counts[_bucket(seconds)] += times

    def quantiles(self, *shares: float) -> tuple[float | None, ...]:
        """Seconds that this share of what was added (0 to 1, nearest rank) did not exceed; None where nothing was."""
        counts, num = sorted(self._counts.items()), self.num
        if not num:
            return (None,) * len(shares)
        return tuple(_at_rank(counts, max(1, math.ceil(share * num))) for share in shares)


def _at_rank(counts: list[tuple[int, int]], rank: int) -> float:
    at = bisect_left(list(accumulate(count for _, count in counts)), rank)
    return _middle(counts[at][0])


def _bucket(seconds: float) -> int:
    if seconds <= SHORTEST_S:
        return 0
    return min(_LAST, math.ceil(math.log(seconds / SHORTEST_S) / _LOG_WIDTH))


def _middle(bucket: int) -> float:
    """Of the bucket by its logarithm."""
    return SHORTEST_S * math.exp((bucket - 0.5) * _LOG_WIDTH) if bucket else SHORTEST_S


__all__ = ("LONGEST_S", "MAX_ERROR", "SHORTEST_S", "LatencySketch")
