"""How much of what is random or large a run of the tests takes on: CAIRN_TEST_EFFORT, a factor, 0.5 by default.

At 0.5 the whole suite ends within minutes on two processors; `make test-long` takes ten times as much, which are the
numbers that the documents name: six hundred simulated runs, ten thousand flipped bits, two hundred kills.
"""

import os

USUAL = 0.5
EFFORT = float(os.environ.get("CAIRN_TEST_EFFORT", USUAL))
IS_LONG = EFFORT > USUAL


def scaled(count: int) -> int:
    """So many at the effort of this run, of something of which `count` are enough for every run."""
    return max(1, round(count * EFFORT))
