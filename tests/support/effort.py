"""How much of what is random or large a run of the tests takes on: TEST_EFFORT, a factor, 0.25 by default.

TEST_DRAWS is the factor of what is drawn by a seed: simulations, properties, flipped bits, kills, power cuts, forged
and malformed bytes; by default the same. Each keeps a few in `make test`, which ends within minutes on two processors.
`.ci/run` draws at 1, and `make test-long` runs everything at 5, which are the numbers that the documents name: six
hundred simulated runs, ten thousand flipped bits, two hundred kills.
"""

import os

EFFORT = float(os.environ.get("TEST_EFFORT", "0.25"))
DRAWS = float(os.environ.get("TEST_DRAWS", EFFORT))
IS_LONG = EFFORT > 1


def scaled(count: int) -> int:
    """So many at the effort of this run, of something of which `count` are enough for every run."""
    return max(1, round(count * EFFORT))


def drawn(count: int) -> int:
    """The same for what a seed draws."""
    return max(1, round(count * DRAWS))
