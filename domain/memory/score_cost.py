"""Attention scores of a few new tokens on all before them, where they are computed and not spared by a fused kernel.

A fused kernel for lengths that it never saw takes a plan, which may cost more than the scores of a few queries do. So
the lengths alone decide, and a computation that is repeated goes the same way again.
"""

from dataclasses import dataclass

UNIT = 256
"""Chunks of a multiple of so many tokens come again in every long prompt: a plan for one serves the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCost:
    """Of one model. `pair_bytes`: of a query and a key, in the layer that has most; `num_layers`: that have any;
    `most_bytes`: of one layer; where it would have more it has none. The default has none."""

    pair_bytes: int = 0
    num_layers: int = 0
    most_bytes: int = 0

    def layer_bytes(self, chunk: int, end: int) -> int:
        """Of `chunk` tokens up to position `end` or fewer, at most; never less for more of either."""
        return min(self.pair_bytes * chunk * (end + chunk), self.most_bytes)

    def are_computed(self, chunk: int, end: int) -> bool:
        """Of exactly so many."""
        return self.num_layers > 0 and has_scores(chunk, end, self.pair_bytes, self.most_bytes)


def has_scores(num_queries: int, num_keys: int, pair_bytes: int, most_bytes: int) -> bool:
    """Whether the last `num_queries` of so many tokens have their scores computed."""
    if num_queries < 2 or num_queries % UNIT == 0:
        return False
    masked = num_queries if num_queries < num_keys else 0  # scores of these columns are there twice for a moment
    return pair_bytes * num_queries * (num_keys + masked) <= most_bytes


__all__ = ("UNIT", "ScoreCost", "has_scores")
