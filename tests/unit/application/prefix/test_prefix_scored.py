"""Requests that compute their whole prompt and restore nothing, and those whose state must not be stored."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adapters.fake import HYBRID
from adapters.memory.block_store import MemoryBlockStore
from application.events import StateCaptured
from domain.models.state_layout import StateLayout
from domain.prefix.explanation import StopReason
from domain.prefix.prompt_content import ForkKind, ForkPoint
from tests.support.stores.cache_driver import KINDS, OPTIONS, CacheDriver, options, plain_answer

PROMPT = list(range(100, 300))


def captured(driver: CacheDriver) -> list[tuple[int, int]]:
    """Blocks and snapshots of each capture so far."""
    return [(one.num_blocks, one.num_snapshots) for one in driver.events.events if isinstance(one, StateCaptured)]


@KINDS
def test_it_computes_everything_and_leaves_everything(layout: StateLayout) -> None:
    driver = CacheDriver(options(layout), store=MemoryBlockStore())
    scored = driver.run(PROMPT, restores=False)
    assert (scored.explanation.reason, scored.explanation.stopped_at, scored.computed) == (StopReason.SCORED, 0, 199)
    after = driver.run(PROMPT)
    assert (after.explanation.stopped_at, after.computed) == (199, 0)
    assert scored.output == after.output == plain_answer(options(layout), PROMPT)
    driver.check_idle()


@KINDS
def test_what_is_there_is_not_written_again_and_what_is_new_is(layout: StateLayout) -> None:
    store = MemoryBlockStore()
    driver = CacheDriver(options(layout), store=store)
    driver.run(PROMPT, num_output=1)
    before, held = captured(driver), store.usage().stored_bytes
    driver.run(PROMPT, num_output=1)
    plain = captured(driver)[len(before) :]
    again = driver.run(PROMPT, num_output=1, restores=False)
    assert again.explanation.num_known == 192
    assert captured(driver) == [*before, *plain, *plain], "as one that restores"
    assert store.usage().stored_bytes == held
    before = captured(driver)
    longer = [*PROMPT, *range(500, 600)]
    driver.run(longer, num_output=1, restores=False)
    assert sum(blocks for blocks, _ in captured(driver)[len(before) :]) == 300 // 16 - 200 // 16
    assert driver.run(longer, num_output=1).computed == 0
    driver.check_idle()


def test_it_waits_for_nobody_and_others_may_follow_it() -> None:
    driver = CacheDriver(options(HYBRID), store=MemoryBlockStore())
    plain = driver.begin(PROMPT)
    scored = driver.begin(PROMPT, restores=False)
    driver.finish(scored)
    assert (scored.computed, plain.position) == (199, -1)
    follower = driver.begin([*PROMPT, 1, 2])
    driver.finish(plain, follower)
    assert follower.explanation.stopped_at >= 199
    driver.check_idle()


FORKS = [ForkPoint(75, ForkKind.SYSTEM_END)]


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
