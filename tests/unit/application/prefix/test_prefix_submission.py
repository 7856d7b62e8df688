"""Lookups from submission to admission: workers hash and list, and what came in meanwhile is found all the same."""

from collections.abc import Callable, Sequence

import pytest

from adapters.fake import ATTENTION
from adapters.memory.block_store import MemoryBlockStore
from application.services.memory_leases import Purpose
from domain.errors import IllegalTransition
from domain.models.state_layout import StateLayout
from domain.prefix.explanation import StopReason
from domain.prefix.record import Namespace, RecordKey
from tests.support.processes.lanes import HeldLane
from tests.support.stores.cache_driver import BLOCK, KINDS, CacheDriver, options, plain_answer

PROMPT = list(range(100, 300))
SHARED, OTHER = PROMPT[:150], list(range(1000, 1030))


class WatchedStore(MemoryBlockStore):
    """`num_listed`: how often its keys were."""

    num_listed = 0

    def keys(self, namespace: Namespace) -> Sequence[RecordKey]:
        self.num_listed += 1
        return super().keys(namespace)


def check(driver: CacheDriver, layout: StateLayout, prompt: list[int], output: list[int]) -> None:
    assert output == plain_answer(options(layout), prompt)
    driver.check_idle()


@KINDS
def test_nothing_of_a_prompt_is_hashed_or_read_but_by_workers(layout: StateLayout) -> None:
    hashing, lane = HeldLane(), HeldLane()
    store = WatchedStore()
    CacheDriver(options(layout), store=store).run(PROMPT)
    store.num_listed = 0
    driver = CacheDriver(options(layout), store=store, lane=lane, hashing=hashing)
    job = driver.submit(PROMPT)
    driver.admit(job)
    assert not job.cache.poll()
    assert (hashing.run(), store.num_listed, lane.run(), store.num_listed) == (1, 0, 1, 1)
    assert not job.cache.poll()
    assert lane.run() > 0
    assert job.cache.poll()
    driver.finish(job)
    assert job.computed == 0
    lane.run()
    check(driver, layout, PROMPT, job.output)


@KINDS
@pytest.mark.parametrize("hot_bytes", [0, 1 << 30], ids=["stores-only", "memory"])
def test_what_others_left_between_lookup_and_admission_is_found(layout: StateLayout, hot_bytes: int) -> None:
    store = WatchedStore()
    driver = CacheDriver(options(layout), store=store, hot_bytes=hot_bytes)
    earlier = driver.submit(PROMPT)
    waiting = [driver.submit(PROMPT), driver.submit([*SHARED, *OTHER])]
    driver.admit(earlier)
    driver.finish(earlier)
    for job in waiting:
        driver.admit(job)
    driver.finish(*waiting)
    assert waiting[0].computed == 0
    assert waiting[1].computed <= len(OTHER) + (BLOCK if not layout.needs_snapshots else len(SHARED))
    assert waiting[0].output == earlier.output
    check(driver, layout, [*SHARED, *OTHER], waiting[1].output)


@KINDS
def test_one_that_is_being_computed_is_followed_from_the_queue(layout: StateLayout) -> None:
    driver = CacheDriver(options(layout), store=MemoryBlockStore(), hot_bytes=0)
    earlier, job = driver.submit(PROMPT), driver.submit(PROMPT)
    driver.admit(earlier)
    for _ in range(3):
        driver.step(earlier)
    assert 0 < earlier.position < len(PROMPT)
    job.cache.refresh()
    assert job.cache.follows == earlier.id
    assert len(driver.events.of("PrefixAwaited")) == 1
    assert driver.cache.memory.held_bytes(*Purpose) == 0
    driver.finish(earlier, job)
    assert job.computed == 0
    check(driver, layout, PROMPT, job.output)


@KINDS
def test_nobody_follows_one_in_the_queue_and_the_next_block_tells_who_shares_it(layout: StateLayout) -> None:
    driver = CacheDriver(options(layout))
    jobs = [driver.submit(prompt) for prompt in (PROMPT, PROMPT, OTHER)]
    for job in jobs:
        job.cache.refresh()
        assert job.cache.follows is None
    blocks = [job.cache.next_block for job in jobs]
    assert blocks[0] == blocks[1] != blocks[2]
    driver.run(OTHER)
    jobs[2].cache.refresh()
    for job in jobs:
        driver.fail(job)
    driver.check_idle()


@KINDS
def test_less_than_a_block_that_both_need_is_not_waited_for(layout: StateLayout) -> None:
    driver = CacheDriver(options(layout))
    earlier, job = driver.submit(PROMPT), driver.submit([*PROMPT[: BLOCK - 1], *OTHER])
    driver.admit(earlier)
    job.cache.refresh()
    assert job.cache.follows is None
    driver.finish(earlier, job)
    driver.check_idle()


@KINDS
@pytest.mark.parametrize(("num_prompt", "is_waited_for"), [(BLOCK // 8, False), (BLOCK - 1, True), (len(OTHER), True)])
def test_all_that_is_left_of_a_prompt_is_waited_for_unless_it_is_little(
    layout: StateLayout, num_prompt: int, is_waited_for: bool
) -> None:
    driver = CacheDriver(options(layout))
    earlier, job = (driver.submit(OTHER[:num_prompt]) for _ in range(2))
    for one in (earlier, job):
        one.cache.refresh()
    assert (earlier.cache.next_block is not None) == is_waited_for
    assert earlier.cache.next_block == job.cache.next_block
    driver.admit(earlier)
    job.cache.refresh()
    assert job.cache.follows == (earlier.id if is_waited_for else None)
    driver.finish(earlier, job)
    assert job.computed == (0 if is_waited_for else num_prompt - 1)
    driver.check_idle()


def test_a_sequence_that_has_passed_what_both_need_and_goes_on_left_it_to_be_found() -> None:
    """No sequence to follow any more, and the answer from before it began."""
    driver = CacheDriver(options(ATTENTION), store=MemoryBlockStore(), hot_bytes=0)
    earlier, job = driver.submit(PROMPT, 1000), driver.submit([*SHARED, *OTHER])
    driver.admit(earlier)
    while earlier.position < len(PROMPT):
        driver.step(earlier)
    driver.admit(job)
    driver.finish(job)
    assert job.computed <= len(OTHER) + BLOCK
    driver.cancel(earlier)
    driver.check_idle()


def test_the_store_is_listed_once_a_namespace() -> None:
    store = WatchedStore()
    driver = CacheDriver(options(ATTENTION), store=store)
    assert store.num_listed == 1
    driver.run(PROMPT)
    assert driver.run(PROMPT).computed == 0
    assert store.num_listed == 1
    driver.run(PROMPT, salt="alice")
    driver.run(PROMPT, salt="alice")
    assert store.num_listed == 2
    driver.check_idle()


def test_a_store_that_was_stuck_when_a_namespace_was_first_used_is_listed_later() -> None:
    store, lane = MemoryBlockStore(), HeldLane()
    CacheDriver(options(ATTENTION), store=store).run(PROMPT)
    driver = CacheDriver(options(ATTENTION), store=store, lane=lane)
    lane.hang()
    driver.clock.advance(3600)
    late = driver.begin(PROMPT)
    driver.finish(late)
    assert (late.computed, late.explanation.reason) == (len(PROMPT) - 1, StopReason.SLOW_STORE)
    assert lane.run()
    driver.hot.resize(0)
    job = driver.begin(PROMPT)
    while not driver.step(job):
        assert lane.run()
    driver.finish(job)
    assert (job.computed, job.explanation.reason) == (0, StopReason.LAST_TOKEN)
    lane.run()
    driver.check_idle()


def test_who_leaves_the_queue_is_not_hashed_any_more() -> None:
    hashing = HeldLane()
    driver = CacheDriver(options(ATTENTION), hashing=hashing)
    unhashed, hashed = driver.submit(PROMPT), driver.submit(PROMPT)
    driver.fail(unhashed)
    hashing.run()
    driver.fail(hashed)
    hashed.cache.abandon()
    driver.check_idle()


ILLEGAL: dict[str, Callable[[CacheDriver], object]] = {
    "polled-before-prepared": lambda driver: driver.submit(PROMPT).cache.poll(),
    "restored-before-ready": lambda driver: driver.submit(PROMPT).cache.restore(driver.model),
    "captured-before-restored": lambda driver: driver.begin(PROMPT).cache.prefilled(driver.model, 32),
    "decoded-before-restored": lambda driver: driver.begin(PROMPT).cache.decoded(driver.model, [1]),
    "restored-when-over": lambda driver: driver.run(PROMPT).cache.restore(driver.model),
    "captured-when-over": lambda driver: driver.run(PROMPT).cache.decoded(driver.model, [1]),
}


@pytest.mark.parametrize("move", ILLEGAL.values(), ids=ILLEGAL)
def test_illegal_moves_raise(move: Callable[[CacheDriver], object]) -> None:
    with pytest.raises(IllegalTransition):
        move(CacheDriver(options(ATTENTION), store=MemoryBlockStore()))


@KINDS
def test_of_several_requests_for_a_stored_prompt_one_reads_it(layout: StateLayout) -> None:
    store = MemoryBlockStore()
    CacheDriver(options(layout), store=store).run(PROMPT)
    lane = HeldLane()
    driver = CacheDriver(options(layout), store=store, lane=lane)
    jobs = [driver.submit(PROMPT) for _ in range(3)]
    lane.run()
    assert driver.step(jobs[0]) is False
    assert jobs[0].is_admitted
    for job in jobs[1:]:
        driver.step(job)
        assert (job.is_admitted, job.cache.follows) == (False, jobs[0].id)
    lane.run()
    driver.finish(*jobs)
    assert [job.computed for job in jobs] == [0, 0, 0]
    assert [set(job.explanation.reused) for job in jobs] == [{"store"}, {"hot"}, {"hot"}]
    driver.check_idle()
