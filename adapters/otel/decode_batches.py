"""How many sequences decoded together while a request did, without a look at any request in any step.

Steps are numbered; their sizes are summed, and of the largest ones only those are kept that no later step exceeds:

    step      1  2  3  4  5  6  7
    size      8  3  5  2  4  1  1
    kept      8     5     4     1      so the largest since step 4 is 4
"""

from bisect import bisect_left
from typing import NamedTuple


class Mark(NamedTuple):
    """A moment between two steps."""

    num_steps: int = 0
    num_tokens: int = 0


class DecodeBatches:
    """One caller at a time. What is kept is bounded by the largest size there is."""

    def __init__(self) -> None:
        self._now = Mark()
        self._steps: list[int] = []
        self._sizes: list[int] = []

    def step(self, size: int) -> None:
        """A step decoded so many tokens."""
        self._now = Mark(self._now.num_steps + 1, self._now.num_tokens + size)
        while self._sizes and self._sizes[-1] <= size:
            self._sizes.pop()
            self._steps.pop()
        self._sizes.append(size)
        self._steps.append(self._now.num_steps)

    def mark(self) -> Mark:
        return self._now

    def num_steps_since(self, mark: Mark) -> int:
        return self._now.num_steps - mark.num_steps

    def mean_since(self, mark: Mark) -> float:
        """0 when there was no step."""
        return (self._now.num_tokens - mark.num_tokens) / max(1, self.num_steps_since(mark))

    def max_since(self, mark: Mark) -> int:
        """0 when there was no step."""
        index = bisect_left(self._steps, mark.num_steps + 1)
        return self._sizes[index] if index < len(self._sizes) else 0


__all__ = ("DecodeBatches", "Mark")
