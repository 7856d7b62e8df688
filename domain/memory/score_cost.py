"""Attention scores of a few new tokens on all before them, where they are computed and not spared by a fused kernel.

A fused kernel for lengths that it never saw takes a plan, which may cost more than the scores of a few queries do. So
the lengths alone decide, and a computation that is repeated goes the same way again.
"""

from dataclasses import dataclass

UNIT = 256
"""Chunks of a multiple of so many tokens come again in every long prompt: a plan for one serves the next."""

ALIGNED = 8
"""Keys are filled up to a multiple of so many: rows of scores that are not aligned take several times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCost:
    """Of one model. `pair_bytes`: of a query and a key, in the layer that has most; `token_bytes`: of a query and
    `key_bytes`: of a key, whatever the other is; `num_layers`: that have any at the same time; `most_bytes`: of one
    layer; where it would have more it has none. The default has none."""

    pair_bytes: int = 0
    token_bytes: int = 0
    key_bytes: int = 0
    num_layers: int = 0
    most_bytes: int = 0

    def layer_bytes(self, chunk: int, end: int) -> int:
        """Of `chunk` tokens up to position `end` or fewer, at most; never less for more of either."""
        return min(self._all_bytes(chunk, end), self.most_bytes)

    def are_computed(self, chunk: int, end: int) -> bool:
        """Of exactly so many."""
        is_few = chunk >= 2 and chunk % UNIT > 0
        return self.num_layers > 0 and is_few and self._all_bytes(chunk, end) <= self.most_bytes

    def _all_bytes(self, chunk: int, end: int) -> int:
        return self.token_bytes * chunk + (self.pair_bytes * chunk + self.key_bytes) * aligned(end)


def aligned(num_keys: int) -> int:
    """With those that are filled up."""
    return -(-num_keys // ALIGNED) * ALIGNED


__all__ = ("ALIGNED", "UNIT", "ScoreCost", "aligned")
