"""Reads of the store that are late: what has arrived is used, the rest computed, and nothing is held afterwards."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adapters.fake import ATTENTION, HYBRID, LAYOUTS, WINDOWED, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.events import FaultObserved
from application.ports.record_reader import Presence
from application.services.prefix.fetch import RECORDS_PER_READ
from application.services.prefix.store_lanes import MAX_UPKEEP
from domain.explanation import StopReason
from domain.record import BlockKey
from domain.state_layout import StateLayout
from tests.support.cache_driver import BLOCK, VOCAB, CacheDriver, plain_answer
from tests.support.lanes import HeldLane

OPTIONS = FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0)
PROMPT = list(range(100, 740))
PER_READ = RECORDS_PER_READ * BLOCK
TIMEOUT_S = 20.0
KINDS = pytest.mark.parametrize("layout", [ATTENTION, WINDOWED, HYBRID, LAYOUTS["everything"]], ids=lambda _: "")


class BrokenStore(MemoryBlockStore):
    """Raises what a store never does."""

    def lookup(self, keys: Sequence[BlockKey]) -> Sequence[Presence]:
        raise RuntimeError("a defect")


def options(layout: StateLayout) -> FakeOptions:
    return replace(OPTIONS, layout=layout)


def restarted(layout: StateLayout, num_known: int = len(PROMPT)) -> tuple[CacheDriver, HeldLane]:
    """The store knows so much of the prompt. It is read when the test says so."""
    store, lane = MemoryBlockStore(), HeldLane(MAX_UPKEEP)
    CacheDriver(options(layout), store=store).run(PROMPT[:num_known])
    return CacheDriver(options(layout), store=store, lane=lane), lane


def pass_deadline(driver: CacheDriver) -> None:
    driver.clock.advance(TIMEOUT_S + 1)


@KINDS
def test_what_arrived_before_the_deadline_is_used(layout: StateLayout) -> None:
    driver, lane = restarted(layout)
    job = driver.begin(PROMPT)
    lane.run(2)
    assert not driver.step(job)
    lane.hang()
    assert not driver.step(job)
    pass_deadline(driver)
    driver.finish(job)
    assert job.output == plain_answer(options(layout), PROMPT)
    assert job.explanation.reason is StopReason.SLOW_STORE
    assert job.explanation.reused.get("hot", 0) == (2 * PER_READ if layout is ATTENTION else 0)
    assert len(driver.events.of("FaultObserved")) == len(PROMPT) // PER_READ - 2  # each read that hung, once
    lane.run()
    driver.check_idle()


def test_the_deadline_counts_anew_for_each_read() -> None:
    driver, lane = restarted(ATTENTION)
    job = driver.begin(PROMPT)
    for _ in range(len(PROMPT) // PER_READ):
        assert lane.hang(1)
        driver.clock.advance(TIMEOUT_S - 1)
        assert not driver.step(job)
        assert lane.run(1)
    driver.finish(job)
    assert job.explanation.reused.get("store", 0) == len(PROMPT) - 1


@KINDS
def test_followers_go_on_with_the_one_whose_read_is_late(layout: StateLayout) -> None:
    driver, lane = restarted(layout, 10 * BLOCK)
    jobs = [driver.begin(PROMPT) for _ in range(8)]
    assert len(driver.events.of("PrefixAwaited")) == 7
    lane.hang()
    pass_deadline(driver)
    driver.finish(*jobs)
    assert [job.output for job in jobs] == [plain_answer(options(layout), PROMPT)] * 8
    assert [job.computed for job in jobs] == [len(PROMPT) - 1] + [0] * 7
    lane.run()
    driver.check_idle()


@KINDS
def test_while_a_read_hangs_the_store_is_not_asked_and_afterwards_it_is(layout: StateLayout) -> None:
    driver, lane = restarted(layout)
    hung = driver.begin(PROMPT)
    assert not driver.step(hung)
    lane.hang(1)
    pass_deadline(driver)
    driver.cancel(hung) if hung.position >= 0 else driver.fail(hung)
    other = driver.begin(PROMPT)
    driver.finish(other)
    assert (other.computed, other.explanation.reason) == (len(PROMPT) - 1, StopReason.SLOW_STORE)
    lane.run()
    driver.hot.resize(0)
    driver.hot.resize(1 << 30)
    again = driver.begin(PROMPT)
    lane.run()
    driver.finish(again)
    assert again.computed == 0
    assert again.explanation.reused.get("store", 0) == len(PROMPT) - 1
    lane.run()
    driver.check_idle()


@KINDS
def test_a_lookup_that_is_late_is_done_without(layout: StateLayout) -> None:
    store, lookups = MemoryBlockStore(), HeldLane()
    CacheDriver(options(layout), store=store).run(PROMPT)
    driver = CacheDriver(options(layout), store=store, lookups=lookups)
    jobs = [driver.begin(PROMPT), driver.begin(PROMPT)]
    assert not driver.step(jobs[0])
    lookups.hang(1)
    pass_deadline(driver)
    driver.finish(*jobs)
    assert [job.computed for job in jobs] == [len(PROMPT) - 1, 0]
    assert [job.output for job in jobs] == [plain_answer(options(layout), PROMPT)] * 2
    assert lookups.run() == 2
    assert store.usage().namespaces[0].num_blocks == len(PROMPT) // BLOCK
    driver.check_idle()


def test_a_store_that_was_late_is_tried_by_one_at_a_time() -> None:
    store, lookups = MemoryBlockStore(), HeldLane()
    CacheDriver(options(ATTENTION), store=store).run(PROMPT)
    driver = CacheDriver(options(ATTENTION), store=store, lookups=lookups)
    late = driver.begin(PROMPT)
    for number in range(3):
        lookups.hang()
        pass_deadline(driver)
        driver.finish(late)
        assert late.explanation.reason is StopReason.SLOW_STORE
        lookups.run()
        driver.hot.resize(0)
        driver.hot.resize(1 << 30)
        late, other = driver.begin([number, *PROMPT]), driver.begin([9, *PROMPT])
        driver.finish(other)
        assert other.explanation.reason is StopReason.SLOW_STORE
    lookups.run()
    driver.finish(late)
    assert late.explanation.reason is StopReason.NEVER_SEEN
    both = [driver.begin([at, *PROMPT]) for at in (20, 21)]
    assert lookups.run() == 2
    driver.finish(*both)
    driver.check_idle()


def test_one_that_left_the_leader_with_while_the_store_was_asked_asks_again() -> None:
    """What the leader has left since may be nowhere but in the store."""
    store, lookups = MemoryBlockStore(), HeldLane()
    driver = CacheDriver(options(ATTENTION), store=store, lookups=lookups, hot_bytes=0)
    leader = driver.begin(PROMPT)
    lookups.run()
    driver.step(leader)
    follower = driver.begin(PROMPT)
    lookups.run()
    driver.finish(leader)
    assert not driver.step(follower)
    lookups.run()
    driver.finish(follower)
    assert follower.computed == 0


def test_deletes_and_notes_of_use_that_are_left_undone_or_fail_are_told() -> None:
    driver, lane = restarted(ATTENTION)
    for _ in range(MAX_UPKEEP + 3):
        driver.tiers.lanes.keep_up(list)
    assert len(driver.events.of("FaultObserved")) == 3
    lane.run()
    driver.tiers.lanes.keep_up(list)
    assert len(driver.events.of("FaultObserved")) == 3
    failing = CacheDriver(options(ATTENTION), store=MemoryBlockStore())
    failing.tiers.lanes.keep_up(lambda: 1 // 0)
    (fault,) = failing.events.of("FaultObserved")
    assert isinstance(fault, FaultObserved)
    assert (fault.where, fault.message.split(":")[0]) == ("store.upkeep", "ZeroDivisionError")


def test_a_read_that_fails_against_the_contract_is_counted_and_done_without() -> None:
    driver = CacheDriver(options(ATTENTION), store=BrokenStore())
    assert driver.run(PROMPT).output == plain_answer(options(ATTENTION), PROMPT)
    assert len(driver.events.of("FaultObserved")) == 1
    driver.check_idle()
