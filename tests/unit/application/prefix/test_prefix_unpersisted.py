"""Requests whose state must not be stored: in memory it is shared as ever, in the store there is nothing of it, and who
may store what they share with it loses nothing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adapters.fake import ATTENTION, HYBRID, LAYOUTS, WINDOWED, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from domain.models.state_layout import StateLayout
from domain.prefix.prompt_content import ForkKind, ForkPoint
from tests.support.stores.cache_driver import VOCAB, CacheDriver, plain_answer

OPTIONS = FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0)
PROMPT = list(range(100, 300))
FORKS = [ForkPoint(75, ForkKind.SYSTEM_END)]
KINDS = pytest.mark.parametrize(
    "layout",
    [ATTENTION, WINDOWED, HYBRID, LAYOUTS["everything"]],
    ids=["attention", "windowed", "hybrid", "everything"],
)


class Tried:
    """One store and what runs over it; `restart` forgets everything else."""

    def __init__(self, layout: StateLayout, hot_bytes: int = 1 << 30) -> None:
        self.options = replace(OPTIONS, layout=layout)
        self.store = MemoryBlockStore()
        self._hot_bytes = hot_bytes
        self.driver = self.restart()

    def restart(self) -> CacheDriver:
        self.driver = CacheDriver(self.options, store=self.store, hot_bytes=self._hot_bytes)
        return self.driver

    def num_stored(self) -> int:
        return sum(space.num_blocks + space.num_snapshots for space in self.store.usage().namespaces)

    def restored(self, prompt: Sequence[int]) -> int:
        """Tokens that are not computed again after a restart; nothing is stored by asking."""
        job = self.restart().run(prompt, persist=False)
        assert job.output == plain_answer(self.options, prompt)
        return len(prompt) - 1 - job.computed

    def outcomes(self) -> set[str]:
        assert self.driver.writer is not None
        return {outcome.value for outcome in self.driver.writer.outcomes}


@KINDS
def test_nothing_of_it_is_stored_and_memory_has_it(layout: StateLayout) -> None:
    tried = Tried(layout)
    tried.driver.run(PROMPT, 40, FORKS, persist=False)
    assert tried.num_stored() == 0
    again = tried.driver.run(PROMPT, 40, FORKS, persist=False)
    assert (again.computed, tried.num_stored()) == (0, 0)
    assert tried.restored(PROMPT) == 0
    tried.driver.check_idle()


@KINDS
def test_who_may_store_makes_the_whole_of_it_persistent(layout: StateLayout) -> None:
    tried = Tried(layout)
    tried.driver.run(PROMPT, 4, FORKS, persist=False)
    assert tried.driver.run(PROMPT, 4, FORKS).computed == 0
    assert tried.outcomes() == {"stored"}
    assert tried.restored(PROMPT) == len(PROMPT) - 1
    assert tried.restored([*PROMPT[:75], *range(40)]) >= 64, (
        "the snapshot at the fork, or at least the blocks before it"
    )


@KINDS
@pytest.mark.parametrize("shared", [40, 90, 150, 199])
def test_what_goes_on_differently_is_stored_without_a_hole(layout: StateLayout, shared: int) -> None:
    tried = Tried(layout)
    tried.driver.run(PROMPT, 40, FORKS, persist=False)
    other = [*PROMPT[:shared], *range(1000, 1150)]
    tried.driver.run(other, 40)
    assert tried.outcomes() == {"stored"}
    assert tried.restored(other) == len(other) - 1
    tried.driver.check()


@KINDS
def test_a_follower_that_may_store_loses_nothing_by_its_leader(layout: StateLayout) -> None:
    tried = Tried(layout)
    leader, follower = tried.driver.begin(PROMPT, persist=False), tried.driver.begin(PROMPT)
    tried.driver.finish(leader, follower)
    assert follower.computed == 0
    assert tried.outcomes() == {"stored"}
    assert tried.restored(PROMPT) == len(PROMPT) - 1


@KINDS
def test_a_follower_that_may_not_store_takes_nothing_from_its_leader(layout: StateLayout) -> None:
    tried = Tried(layout)
    other = [*PROMPT[:150], *range(1000, 1050)]
    leader, follower = tried.driver.begin(PROMPT), tried.driver.begin(other, 40, persist=False)
    tried.driver.finish(leader, follower)
    assert follower.output == plain_answer(tried.options, other, 40)
    assert tried.restored(PROMPT) == len(PROMPT) - 1
    assert tried.restored(other) <= 150


@KINDS
def test_without_a_hot_tier_it_is_kept_nowhere_and_nobody_waits_for_it(layout: StateLayout) -> None:
    tried = Tried(layout, hot_bytes=0)
    leader, follower = tried.driver.begin(PROMPT, persist=False), tried.driver.begin(PROMPT)
    assert tried.driver.step(follower)
    tried.driver.finish(leader, follower)
    assert tried.restored(PROMPT) == len(PROMPT) - 1
    alone = Tried(layout, hot_bytes=0)
    alone.driver.run(PROMPT, persist=False)
    assert (alone.num_stored(), alone.driver.run(PROMPT, persist=False).computed) == (0, len(PROMPT) - 1)


@KINDS
def test_thinning_for_it_takes_nothing_from_the_store(layout: StateLayout) -> None:
    tried = Tried(layout)
    tried.driver.run(PROMPT, 4, FORKS)
    before = tried.num_stored()
    for turn in range(4):
        tried.driver.run([*PROMPT, *range(1000, 1100 + 40 * turn)], 4, persist=False)
    assert tried.num_stored() == before
