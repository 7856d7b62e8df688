"""A store that is slow, hangs or fails: requests go on without it, and upkeep that callers wait for has a bound."""

import asyncio
from collections.abc import Sequence
from threading import Event

import pytest

from adapters.fake import ATTENTION
from adapters.fake.environment import FakeClock
from adapters.memory.block_store import MemoryBlockStore
from application.events import FaultObserved
from application.services.lane import Lane
from application.services.prefix.store_tier import MAX_UPKEEP, RECORDS_PER_READ, StoreTier
from domain.errors import StoreUnresponsive
from domain.models.state_layout import StateLayout
from domain.prefix.explanation import StopReason
from domain.prefix.record import Namespace, RecordKey
from tests.support.processes.lanes import HeldLane
from tests.support.stores.cache_driver import BLOCK, KINDS, CacheDriver, options, plain_answer
from tests.support.telemetry.recording import RecordingEvents

PROMPT = list(range(100, 740))
PER_READ = RECORDS_PER_READ * BLOCK
TIMEOUT_S = 20.0


class BrokenStore(MemoryBlockStore):
    """Raises what a store never does."""

    def keys(self, namespace: Namespace) -> Sequence[RecordKey]:
        raise RuntimeError("a defect")


def restarted(layout: StateLayout, num_known: int = len(PROMPT)) -> tuple[CacheDriver, HeldLane]:
    """The store knows so much of the prompt. It is read when the test says so."""
    store, lane = MemoryBlockStore(), HeldLane(MAX_UPKEEP)
    CacheDriver(options(layout), store=store).run(PROMPT[:num_known])
    driver = CacheDriver(options(layout), store=store, lane=lane)
    assert lane.run() == 1  # what it has is listed
    return driver, lane


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
    while not driver.step(again):
        assert lane.run()
    driver.finish(again)
    assert again.computed == 0
    assert again.explanation.reused.get("store", 0) == len(PROMPT) - 1
    lane.run()
    driver.check_idle()


@KINDS
def test_after_a_late_read_one_request_at_a_time_tries_the_store(layout: StateLayout) -> None:
    store, lane = MemoryBlockStore(), HeldLane()
    prompts = [PROMPT, PROMPT[1:], PROMPT[2:]]
    first = CacheDriver(options(layout), store=store)
    for prompt in prompts:
        first.run(prompt)
    driver = CacheDriver(options(layout), store=store, lane=lane)
    lane.run()
    hung = driver.begin(prompts[0])
    assert not driver.step(hung)
    lane.hang(1)
    pass_deadline(driver)
    driver.finish(hung)
    lane.run()  # late
    trying, other = driver.begin(prompts[1]), driver.begin(prompts[2])
    assert not driver.step(trying)
    driver.finish(other)
    assert (other.computed, other.explanation.reason) == (len(prompts[2]) - 1, StopReason.SLOW_STORE)
    driver.hot.resize(0)
    driver.hot.resize(1 << 30)
    lane.run()  # in time
    jobs = [trying, driver.begin(prompts[2])]
    while not all([driver.step(job) or job.position >= 0 for job in jobs]):
        lane.run()
    driver.finish(*jobs)
    assert [job.explanation.reused.get("store") for job in jobs] == [len(job.prompt.token_ids) - 1 for job in jobs]
    lane.run()
    driver.check_idle()


@KINDS
def test_a_list_of_what_is_stored_that_is_late_is_done_without(layout: StateLayout) -> None:
    store, lane = MemoryBlockStore(), HeldLane()
    CacheDriver(options(layout), store=store).run(PROMPT)
    driver = CacheDriver(options(layout), store=store, lane=lane)
    jobs = [driver.begin(PROMPT), driver.begin(PROMPT)]
    assert not driver.step(jobs[0])
    lane.hang(1)
    pass_deadline(driver)
    driver.finish(*jobs)
    assert [job.computed for job in jobs] == [len(PROMPT) - 1, 0]
    assert [job.output for job in jobs] == [plain_answer(options(layout), PROMPT)] * 2
    assert lane.run()
    assert store.usage().namespaces[0].num_blocks == len(PROMPT) // BLOCK
    driver.check_idle()


def test_deletes_that_are_left_undone_or_fail_are_reported() -> None:
    driver, lane = restarted(ATTENTION)
    for _ in range(MAX_UPKEEP + 3):
        driver.tiers.store._keep_up(list)
    assert len(driver.events.of("FaultObserved")) == 3
    lane.run()
    driver.tiers.store._keep_up(list)
    assert len(driver.events.of("FaultObserved")) == 3
    failing = CacheDriver(options(ATTENTION), store=MemoryBlockStore())
    failing.tiers.store._keep_up(lambda: 1 // 0)
    (fault,) = failing.events.of("FaultObserved")
    assert isinstance(fault, FaultObserved)
    assert (fault.where, fault.message.split(":")[0]) == ("store.upkeep", "ZeroDivisionError")


def test_a_read_that_fails_against_the_contract_is_counted_and_done_without() -> None:
    driver = CacheDriver(options(ATTENTION), store=BrokenStore())
    assert driver.run(PROMPT).output == plain_answer(options(ATTENTION), PROMPT)
    assert len(driver.events.of("FaultObserved")) == 2  # when the model was loaded, and when it was looked up
    driver.check_idle()


SOON_S = 0.05


def test_nobody_waits_for_upkeep_that_hangs_and_what_has_not_begun_never_does() -> None:
    upkeep, gate, done = Lane("upkeep", 1), Event(), list[str]()
    workers = StoreTier(FakeClock(), RecordingEvents(), upkeep=upkeep, timeout_s=SOON_S)

    def hang() -> None:
        gate.wait()
        done.append("hung")

    with pytest.raises(StoreUnresponsive, match=r"within 0\.05 s"):
        asyncio.run(workers.await_upkeep(hang))
    with pytest.raises(StoreUnresponsive, match=r"within 0\.01 s"):
        asyncio.run(workers.await_upkeep(lambda: done.append("late"), timeout_s=0.01))
    gate.set()
    assert asyncio.run(workers.await_upkeep(lambda: "next", timeout_s=60)) == "next"
    upkeep.close()
    assert upkeep.join(60)
    assert done == ["hung"]
