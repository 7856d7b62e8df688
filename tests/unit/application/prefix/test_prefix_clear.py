"""Clearing the prefix cache under running requests: nothing from before comes back, and they end as they would have."""

from dataclasses import replace

import pytest

from adapters.memory.block_store import MemoryBlockStore
from domain.models.state_layout import StateLayout
from tests.support.processes.lanes import HeldLane
from tests.support.stores.cache_driver import KINDS, OPTIONS, CacheDriver, plain_answer
from tests.support.stores.stepped_writer import SteppedWriter

PROMPT = list(range(100, 300))


def num_stored(store: MemoryBlockStore) -> int:
    return sum(space.num_blocks + space.num_snapshots for space in store.usage().namespaces)


def num_hot(driver: CacheDriver) -> int:
    usage = driver.hot.usage()
    return usage.num_blocks + usage.num_snapshots


@KINDS
def test_memory_queue_and_store_are_cleared(layout: StateLayout) -> None:
    store = MemoryBlockStore()
    queue = SteppedWriter(store)
    driver = CacheDriver(replace(OPTIONS, layout=layout), store=store, queue=queue)
    driver.run(PROMPT)
    queue.pump(6)
    total = queue.counts().enqueued
    assert 0 < num_stored(store) < total
    cleared = driver.cache.clear(None, None)
    assert cleared.num_hot > 0
    assert cleared.num_stored == total
    assert (num_stored(store), num_hot(driver), queue.counts().queued) == (0, 0, 0)
    assert driver.run(PROMPT).computed == len(PROMPT) - 1
    driver.check_idle()


def test_the_hot_tier_alone_is_emptied_but_for_what_is_in_use() -> None:
    store = MemoryBlockStore()
    driver = CacheDriver(OPTIONS, store=store)
    driver.run(PROMPT)
    driver.run(list(range(400, 600)))
    stored, used_bytes = num_stored(store), driver.hot.usage().used_bytes
    job = driver.begin(PROMPT)
    assert job.cache.poll()
    num_pinned = driver.hot.usage().num_pinned
    assert num_pinned > 0
    cleared = driver.hot.empty()
    left = driver.hot.usage()
    assert cleared.num_hot > 0
    assert cleared.hot_bytes == used_bytes - left.used_bytes
    assert num_hot(driver) == num_pinned
    driver.finish(job)
    assert num_stored(store) == stored
    assert driver.hot.empty().num_hot > 0
    assert (num_hot(driver), driver.hot.usage().used_bytes) == (0, 0)
    assert driver.run(PROMPT).computed == 0
    driver.check_idle()


@KINDS
@pytest.mark.parametrize("steps", [1, 3, 6, 9, 11])
def test_a_request_that_runs_leaves_nothing_behind(layout: StateLayout, steps: int) -> None:
    store = MemoryBlockStore()
    options = replace(OPTIONS, layout=layout)
    driver = CacheDriver(options, store=store)
    job = driver.begin(PROMPT, 40)
    for _ in range(steps):
        driver.step(job)
    driver.cache.clear(None, None)
    driver.finish(job)
    assert job.output == plain_answer(options, PROMPT, 40)
    assert (num_stored(store), num_hot(driver)) == (0, 0)
    assert driver.writer is not None
    assert {outcome.value for outcome in driver.writer.outcomes} <= {"stored"}
    again = driver.run(PROMPT)
    assert again.computed == len(PROMPT) - 1
    assert num_stored(store) > 0
    driver.check_idle()


@KINDS
def test_what_was_fetched_before_does_not_come_back(layout: StateLayout) -> None:
    store, lane = MemoryBlockStore(), HeldLane()
    options = replace(OPTIONS, layout=layout)
    CacheDriver(options, store=store).run(PROMPT)
    driver = CacheDriver(options, store=store, lane=lane)
    job = driver.begin(PROMPT)
    lane.run()
    driver.cache.clear(None, None)
    while not job.is_done:
        driver.step(job)
        lane.run()
    assert job.computed == len(PROMPT) - 1
    assert job.output == plain_answer(options, PROMPT)
    # All of it was computed after clearing, so it may be kept.
    assert driver.run(PROMPT).computed == 0
    driver.check_idle()


@KINDS
def test_what_is_pinned_by_a_restore_goes_and_is_released_as_ever(layout: StateLayout) -> None:
    options = replace(OPTIONS, layout=layout)
    driver = CacheDriver(options)
    driver.run(PROMPT)
    job = driver.begin(PROMPT)
    assert job.cache.poll()
    assert driver.hot.usage().num_pinned > 0
    driver.cache.clear(None, None)
    assert num_hot(driver) == 0
    driver.finish(job)
    assert job.output == plain_answer(options, PROMPT)
    driver.run(PROMPT)
    driver.check_idle()


@KINDS
def test_nobody_waits_for_a_request_that_leaves_nothing_behind(layout: StateLayout) -> None:
    driver = CacheDriver(replace(OPTIONS, layout=layout), store=MemoryBlockStore())
    leader, follower = driver.begin(PROMPT), driver.begin(PROMPT)
    driver.step(leader)
    driver.step(leader)
    assert not driver.step(follower)
    driver.cache.clear(None, None)
    assert driver.step(follower)
    late = driver.begin(PROMPT)
    driver.finish(follower, late)
    assert not leader.is_done
    assert (follower.computed, late.computed) == (len(PROMPT) - 1, 0)
    driver.cancel(leader)
    driver.check_idle()


def test_one_tenant_is_cleared_and_the_others_stay() -> None:
    store = MemoryBlockStore()
    driver = CacheDriver(OPTIONS, store=store)
    for salt in ("alice", "bob", ""):
        driver.run(PROMPT, salt=salt)
    before = num_stored(store)
    cleared = driver.cache.clear(None, "alice")
    assert cleared.num_stored == before // 3
    assert cleared.stored_bytes > 0
    computed = {salt: driver.run(PROMPT, salt=salt).computed for salt in ("bob", "", "alice")}
    assert computed == {"bob": 0, "": 0, "alice": len(PROMPT) - 1}
    assert driver.cache.clear(None, "").num_stored == before // 3
    assert driver.cache.clear("another", None).num_stored == 0
    assert driver.cache.clear("toy", None).num_stored == 2 * before // 3
    assert num_stored(store) == num_hot(driver) == 0
    driver.check_idle()
