"""Random workloads through the real services: right answers, exact accounting, sound storage, nothing left behind."""

import pytest

from tests.simulation.simulator import Simulation
from tests.support.effort import scaled

NUM_ACTIONS = 500
NUM_QUICK = 30
NUM_ALL = NUM_QUICK + scaled(114)
NUM_TOGETHER = 19


@pytest.mark.parametrize("seed", range(NUM_QUICK))
def test_a_random_run_is_right(seed: int) -> None:
    assert Simulation(seed).run(NUM_ACTIONS)["submitted"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("first", range(NUM_QUICK, NUM_ALL, NUM_TOGETHER))
def test_many_random_runs_are_right(first: int) -> None:
    for seed in range(first, first + NUM_TOGETHER):
        assert Simulation(seed).run(NUM_ACTIONS)["submitted"] > 0, seed


def test_a_seed_always_plays_the_same_run() -> None:
    assert Simulation(7).run(NUM_ACTIONS) == Simulation(7).run(NUM_ACTIONS)
