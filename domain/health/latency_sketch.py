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
    """Not thread-safe. What was asked of it last is remembered until something is added."""

    __slots__ = ("_asked", "_counts")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._asked: tuple[tuple[float, ...], tuple[float | None, ...]] | None = None

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
        self._asked = None

    def quantiles(self, *shares: float) -> tuple[float | None, ...]:
        """Seconds that this share of what was added (0 to 1, nearest rank) did not exceed; None where nothing was."""
        if not self._counts:
            return (None,) * len(shares)
        if self._asked is None or self._asked[0] != shares:
            self._asked = shares, self._look_up(shares)
        return self._asked[1]

    def _look_up(self, shares: tuple[float, ...]) -> tuple[float, ...]:
        buckets = sorted(self._counts)
        ranks = list(accumulate(self._counts[bucket] for bucket in buckets))
        wanted = (max(1, math.ceil(share * ranks[-1])) for share in shares)
        return tuple(_middle(buckets[bisect_left(ranks, rank)]) for rank in wanted)


def _bucket(seconds: float) -> int:
    if seconds <= SHORTEST_S:
        return 0
    return min(_LAST, math.ceil(math.log(seconds / SHORTEST_S) / _LOG_WIDTH))


def _middle(bucket: int) -> float:
    """Of the bucket by its logarithm."""
    return SHORTEST_S * math.exp((bucket - 0.5) * _LOG_WIDTH) if bucket else SHORTEST_S
