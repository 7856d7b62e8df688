"""The seconds that reuse saved: computing the reused tokens would have taken them, by the measured pace of the model,
less what restoring took.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from domain.models.pace import Pace
from domain.prefix.explanation import TIER_NAMES


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
