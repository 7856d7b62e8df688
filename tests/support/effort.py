"""How much of what is random or large a run of the tests takes on: TEST_EFFORT, a factor, 0.25 by default.

TEST_DRAWS is the factor of what is drawn by a seed: simulations, properties, flipped bits, kills, power cuts, forged
and malformed bytes; by default the same. Each keeps a few in `make test`, which ends within minutes on two processors.
`.ci/run` draws at 1, and `make test-long` runs everything at 5, which are the numbers that the documents name: six
hundred simulated runs, ten thousand flipped bits, two hundred kills.

What is a square, of models and behaviours say, is tested in full by a long run only. Others test `some_of` it: every
behaviour with a model of each layout of state, and every model with the behaviour that finds most.
"""

import os
from collections.abc import Collection, Iterable
from typing import TypeVar

T = TypeVar("T")

EFFORT = float(os.environ.get("TEST_EFFORT", "0.25"))
DRAWS = float(os.environ.get("TEST_DRAWS", EFFORT))
IS_LONG = EFFORT > 1


def some_of(every: Iterable[T], few: Collection[T]) -> list[T]:
    """Those of `few` that there are, in their order; every one in a long run."""
    return [one for one in every if IS_LONG or one in few]


def scaled(count: int) -> int:
    """So many at the effort of this run, of something of which `count` are enough for every run."""
    return max(1, round(count * EFFORT))


def drawn(count: int) -> int:
    """The same for what a seed draws."""
    return max(1, round(count * DRAWS))
