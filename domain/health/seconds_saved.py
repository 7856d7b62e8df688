"""The seconds that reuse saved: computing the reused tokens would have taken them, less what restoring took.

Computing is priced by the measured pace of the model, by depth, because attention makes deep tokens dearer:

    depth    0      1k     2k          4k                  8k
             |  0   |  1   |     2     |         3         |   ...   numbers of the buckets

A depth that was not measured has the pace of the nearest measured bucket before it, or, without one, of the nearest
after it in proportion to the depth. Where the cost of a token is `a + b * depth`, both are at most what is true, but
for the width of a bucket.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from domain.prefix.explanation import TIER_NAMES

FIRST_BUCKET_TOKENS = 1024

MEASURED_TOKENS = 64
"""The shortest chunk that is measured: a shorter one takes as long as reading the weights does."""


class Pace:
    """The measured seconds a token of computing the prompts of one model, by depth."""

    def __init__(self) -> None:
        self._tokens: Counter[int] = Counter()
        self._seconds: dict[int, float] = {}

    def add(self, start: int, end: int, seconds: float) -> None:
        """Measures a chunk; its seconds are spread evenly over its tokens."""
        if (num_tokens := end - start) < MEASURED_TOKENS:
            return
        for bucket, first, last in _parts(start, end):
            self._tokens[bucket] += last - first
            self._seconds[bucket] = self._seconds.get(bucket, 0.0) + seconds * (last - first) / num_tokens

    def seconds_for(self, num_tokens: int) -> float | None:
        """Returns the time of computing the first tokens of a prompt; None until something was measured."""
        if not self._tokens:
            return None
        return sum(
            (last - first) * self._at(bucket, (first + last) / 2) for bucket, first, last in _parts(0, num_tokens)
        )

    def _at(self, bucket: int, depth: float) -> float:
        before = max((one for one in self._tokens if one <= bucket), default=None)
        nearest = min(self._tokens) if before is None else before
        share = 1.0 if before is not None else depth / (FIRST_BUCKET_TOKENS << nearest)
        return share * self._seconds[nearest] / self._tokens[nearest]


def _parts(start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The parts of a range that lie in one bucket each: the bucket, the first token and the one after the last."""
    while start < end:
        bucket = (start // FIRST_BUCKET_TOKENS).bit_length()
        last = min(end, FIRST_BUCKET_TOKENS << bucket)
        yield bucket, start, last
        start = last


@dataclass(frozen=True, slots=True)
class Saved:
    """Seconds by tier, less than zero where restoring took longer than computing would have. `num_unpriced`: reused
    tokens of models whose pace was not measured, which count for nothing."""

    seconds: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(TIER_NAMES, 0.0))
    num_unpriced: int = 0

    def plus(self, other: "Saved", sign: int = 1) -> "Saved":
        seconds = {tier: self.seconds[tier] + sign * other.seconds[tier] for tier in TIER_NAMES}
        return Saved(seconds, self.num_unpriced + sign * other.num_unpriced)


def restoring_by_tier(tier_bytes: Mapping[str, int], fetching_s: float, copying_s: float) -> Mapping[str, float]:
    """Returns the seconds that restoring these bytes took by tier: fetching waited for the slowest tier, and each tier
    has its part of the copying."""
    slowest, num_bytes = max(tier_bytes, key=TIER_NAMES.index, default=""), sum(tier_bytes.values())
    return {
        tier: (fetching_s if tier == slowest else 0.0) + (copying_s * size / num_bytes if num_bytes else 0.0)
        for tier, size in tier_bytes.items()
    }


def seconds_saved(pace: Pace, reused: Mapping[str, int], restoring: Mapping[str, float]) -> Saved:
    """Returns what one prompt saved. `reused`: tokens by tier, from its first token on; each tier has its share of the
    time that computing all of them would have taken. `restoring`: seconds by tier."""
    num_tokens = sum(reused.values())
    computing_s = pace.seconds_for(num_tokens)
    if computing_s is None:
        return Saved(num_unpriced=num_tokens)
    per_token_s = computing_s / num_tokens if num_tokens else 0.0
    return Saved({tier: reused.get(tier, 0) * per_token_s - restoring.get(tier, 0.0) for tier in TIER_NAMES})
