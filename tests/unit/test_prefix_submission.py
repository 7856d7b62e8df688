"""Lookups from submission to admission: workers make them, and what came in meanwhile is found all the same."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import get_ident

import pytest

from adapters.fake import ATTENTION, HYBRID, LAYOUTS, WINDOWED, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.ports.record_reader import Presence
from application.services.lane import Lane
from domain.errors import IllegalTransition
from domain.explanation import StopReason
from domain.ids import GroupIndex
from domain.record import BlockKey, Namespace, Record, RecordKey, SnapshotKey
from domain.snapshot_place import SnapshotPlace
from domain.state_layout import StateLayout
from tests.support.cache_driver import BLOCK, VOCAB, CacheDriver, plain_answer
from tests.support.lanes import HeldLane
from tests.support.stepped_writer import SteppedWriter

OPTIONS = FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0)
PROMPT = list(range(100, 300))
SHARED, OTHER = PROMPT[:150], list(range(1000, 1030))
KINDS = pytest.mark.parametrize(
    "layout",
    [ATTENTION, WINDOWED, HYBRID, LAYOUTS["everything"]],
    ids=["attention", "windowed", "hybrid", "everything"],
)


class WatchedStore(MemoryBlockStore):
    """Remembers who read it. `num_lookups`: of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: set[int] = set()
        self.num_lookups = 0

    def lookup(self, keys: Sequence[BlockKey]) -> Sequence[Presence]:
        self.readers.add(get_ident())
        self.num_lookups += 1
        return super().lookup(keys)

    def find_snapshots(self, namespace: Namespace, places: Sequence[SnapshotPlace]) -> Sequence[Sequence[SnapshotKey]]:
        self.readers.add(get_ident())
        return super().find_snapshots(namespace, places)

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        self.readers.add(get_ident())
        return super().get(keys, groups)


def options(layout: StateLayout) -> FakeOptions:
    return replace(OPTIONS, layout=layout)


def check(driver: CacheDriver, layout: StateLayout, prompt: list[int], output: list[int]) -> None:
    assert output == plain_answer(options(layout), prompt)
    driver.check_idle()


@KINDS
def test_nothing_of_a_prompt_is_hashed_or_read_but_by_workers(layout: StateLayout) -> None:
    hashing, lookups, lane = HeldLane(), HeldLane(), HeldLane()
    store = WatchedStore()
    CacheDriver(options(layout), store=store).run(PROMPT)
    driver = CacheDriver(options(layout), store=store, lane=lane, lookups=lookups, hashing=hashing)
    store.num_lookups = 0
    job = driver.submit(PROMPT)
    job.cache.prepare()
    assert not job.cache.poll()
    assert (lookups.run(), hashing.run(), store.num_lookups) == (0, 1, 0)
    assert not job.cache.poll()
    assert (lane.run(), lookups.run(), store.num_lookups) == (0, 1, 1)
    assert not job.cache.poll()
    assert lane.run() > 0
    assert job.cache.poll()
    driver.finish(job)
    assert job.computed == 0
    lane.run()
    check(driver, layout, PROMPT, job.output)


def test_the_threads_that_read_are_not_the_one_that_computes() -> None:
    store = WatchedStore()
    CacheDriver(options(HYBRID), store=store).run(PROMPT)
    store.readers.clear()
    lanes = [Lane(name, 1) for name in ("restore", "lookup", "hash")]
    driver = CacheDriver(options(HYBRID), store=store, lane=lanes[0], lookups=lanes[1], hashing=lanes[2])
    job = driver.begin(PROMPT)
    while not job.cache.poll():
        pass
    assert store.readers
    assert get_ident() not in store.readers
    driver.finish(job)
    assert job.computed == 0
    for lane in lanes:
        lane.close()
        assert lane.join(60)


@KINDS
@pytest.mark.parametrize("hot_bytes", [0, 1 << 30], ids=["stores-only", "memory"])
def test_what_others_left_between_lookup_and_admission_is_found(layout: StateLayout, hot_bytes: int) -> None:
    store = WatchedStore()
    driver = CacheDriver(options(layout), store=store, hot_bytes=hot_bytes)
    earlier = driver.submit(PROMPT)
    waiting = [driver.submit(PROMPT), driver.submit([*SHARED, *OTHER])]
    earlier.cache.prepare()
    driver.finish(earlier)
    for job in waiting:
        job.cache.prepare()
    driver.finish(*waiting)
    assert waiting[0].computed == 0
    assert waiting[1].computed <= len(OTHER) + (BLOCK if not layout.needs_snapshots else len(SHARED))
    assert waiting[0].output == earlier.output
    check(driver, layout, [*SHARED, *OTHER], waiting[1].output)


@KINDS
@pytest.mark.parametrize("num_steps", [0, 1, 2], ids=["waiting", "being-written", "stored-not-settled"])
def test_what_is_on_its_way_to_the_store_by_then_is_found(layout: StateLayout, num_steps: int) -> None:
    store = MemoryBlockStore()
    queue = SteppedWriter(store)
    driver = CacheDriver(options(layout), store=store, queue=queue, hot_bytes=0)
    earlier, job = driver.submit(PROMPT), driver.submit(PROMPT)
    earlier.cache.prepare()
    driver.finish(earlier)
    queue.pump(num_steps)
    job.cache.prepare()
    driver.finish(job)
    assert (job.computed, job.explanation.reused) == (0, {"store": len(PROMPT) - 1})
    check(driver, layout, PROMPT, job.output)


@KINDS
def test_one_that_is_being_computed_at_admission_is_followed(layout: StateLayout) -> None:
    driver = CacheDriver(options(layout), store=MemoryBlockStore(), hot_bytes=0)
    earlier, job = driver.submit(PROMPT), driver.submit(PROMPT)
    earlier.cache.prepare()
    for _ in range(3):
        driver.step(earlier)
    assert 0 < earlier.position < len(PROMPT)
    job.cache.prepare()
    assert len(driver.events.of("PrefixAwaited")) == 1
    driver.finish(earlier, job)
    assert job.computed == 0
    check(driver, layout, PROMPT, job.output)


@KINDS
def test_one_that_is_admitted_follows_nobody_in_the_queue(layout: StateLayout) -> None:
    """It may hold what the other waits for. Followed in the queue, the other is left where it is, and finds later what
    was computed before it."""
    driver = CacheDriver(options(layout))
    earlier, job = driver.submit(PROMPT), driver.submit(PROMPT)
    earlier.cache.prepare(ahead=True)
    job.cache.prepare(ahead=True)
    assert len(driver.events.of("PrefixAwaited")) == 1
    assert not job.cache.poll()
    job.cache.prepare()
    driver.finish(job)
    earlier.cache.prepare()
    driver.finish(earlier)
    assert (job.computed, earlier.computed) == (len(PROMPT) - 1, 0)
    driver.check_idle()


def test_a_sequence_that_has_passed_what_both_need_and_goes_on_left_it_to_be_found() -> None:
    """Nobody to follow any more, and the answer from before it began."""
    driver = CacheDriver(options(ATTENTION), store=MemoryBlockStore(), hot_bytes=0)
    earlier, job = driver.submit(PROMPT, 1000), driver.submit([*SHARED, *OTHER])
    earlier.cache.prepare()
    while earlier.position < len(PROMPT):
        driver.step(earlier)
    job.cache.prepare()
    driver.finish(job)
    assert job.computed <= len(OTHER) + BLOCK
    driver.cancel(earlier)
    driver.check_idle()


def test_the_store_is_asked_once_when_nothing_new_came() -> None:
    store = WatchedStore()
    driver = CacheDriver(options(ATTENTION), store=store)
    driver.run(PROMPT)
    store.num_lookups = 0
    again, fresh = driver.submit(PROMPT), driver.submit(list(range(5000, 5100)))
    driver.run(OTHER)
    assert store.num_lookups == 3
    for job in (again, fresh):
        job.cache.prepare()
    driver.finish(again, fresh)
    assert store.num_lookups == 3
    assert (again.computed, fresh.computed) == (0, 99)
    driver.check_idle()


def test_news_without_end_delay_nobody() -> None:
    """Each repeated lookup is overtaken by another arrival at the same place; the second answer is taken as it is."""
    lookups = HeldLane()
    driver = CacheDriver(options(ATTENTION), store=MemoryBlockStore(), hot_bytes=0, lookups=lookups)
    job = driver.submit([*SHARED, *OTHER])
    assert lookups.run() == 1
    leave(driver, lookups, [*SHARED[:24], 5, 6])
    job.cache.prepare()
    assert not job.cache.poll()  # something came in since it asked, so it asks again
    leave(driver, lookups, [*SHARED[:24], 7, 8])
    assert job.cache.poll()
    driver.finish(job)
    driver.check_idle()


def leave(driver: CacheDriver, lookups: HeldLane, prompt: list[int]) -> None:
    """Compute a prompt, and look up what waits for that meanwhile."""
    job = driver.begin(prompt)
    while not job.is_done:
        lookups.run()
        driver.step(job)


def test_a_store_that_was_stuck_at_submission_is_asked_at_admission() -> None:
    store, lookups = MemoryBlockStore(), HeldLane()
    CacheDriver(options(ATTENTION), store=store).run(PROMPT)
    driver = CacheDriver(options(ATTENTION), store=store, lookups=lookups)
    hung = driver.submit(OTHER)
    lookups.hang()
    driver.clock.advance(3600)
    job = driver.submit(PROMPT)
    assert lookups.run() == 1  # it is not asked while a read hangs
    hung.cache.prepare()
    job.cache.prepare()
    assert lookups.run() == 1
    driver.finish(job, hung)
    assert (job.computed, job.explanation.reason) == (0, StopReason.LAST_TOKEN)
    driver.check_idle()


@KINDS
def test_what_was_looked_up_before_clearing_is_not_used_after_it(layout: StateLayout) -> None:
    store = MemoryBlockStore()
    driver = CacheDriver(options(layout), store=store)
    driver.run(PROMPT)
    job = driver.submit(PROMPT)
    driver.cache.clear(None, None)
    job.cache.prepare()
    driver.finish(job)
    assert job.computed == len(PROMPT) - 1
    assert driver.run(PROMPT).computed == 0  # computed after clearing, so it was kept
    check(driver, layout, PROMPT, job.output)


def test_who_leaves_the_queue_is_not_looked_up_any_more() -> None:
    hashing, lookups, store = HeldLane(), HeldLane(), WatchedStore()
    driver = CacheDriver(options(ATTENTION), store=store, lookups=lookups, hashing=hashing)
    unhashed, hashed = driver.submit(PROMPT), driver.submit(PROMPT)
    driver.fail(unhashed)
    hashing.run()
    driver.fail(hashed)
    lookups.run()
    hashed.cache.abandon()
    assert store.num_lookups == 0
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
