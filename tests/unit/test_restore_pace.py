"""What a store has is computed instead only where that is clearly faster, by enough samples, and not for ever."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adapters.fake import ATTENTION, HYBRID, LAYOUTS, WINDOWED, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from domain.explanation import StopReason
from domain.ids import GroupIndex
from domain.record import Record, RecordKey
from domain.restore_pace import CLEAR_RATIO, MIN_SAMPLES, MIN_TOKENS, PROBE_EVERY, RestorePace
from domain.state_layout import StateLayout
from tests.support.cache_driver import GRID, VOCAB, CacheDriver, Job, plain_answer

KINDS = pytest.mark.parametrize("layout", [ATTENTION, WINDOWED, HYBRID, LAYOUTS["everything"]], ids=lambda _: "")
OPTIONS = FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0)
PROMPT = list(range(100, 100 + 2 * MIN_TOKENS))
LONG = 8 * MIN_TOKENS


def measured(restoring_ns: int, computing_ns: int, num_samples: int = MIN_SAMPLES, end: int = LONG) -> RestorePace:
    """Both by so many samples; chunks of 512 tokens, up to `end`."""
    pace = RestorePace()
    for _ in range(num_samples):
        pace = pace.restored(MIN_TOKENS, restoring_ns * MIN_TOKENS)
        for at in range(512, end + 1, 512):
            pace = pace.computed(at - 512, at, computing_ns * 512)
    return pace


def test_computing_is_preferred_only_beyond_a_clear_ratio() -> None:
    assert measured(151, 100).prefers_computing(0, LONG, LONG)
    assert not measured(149, 100).prefers_computing(0, LONG, LONG)
    assert CLEAR_RATIO == 1.5


def test_a_few_tokens_are_restored_whatever_it_takes() -> None:
    assert not measured(1000, 1).prefers_computing(0, MIN_TOKENS - 1, MIN_TOKENS - 1)
    assert measured(1000, 1).prefers_computing(0, MIN_TOKENS, MIN_TOKENS)


def test_nothing_is_declined_before_both_were_measured_often_enough() -> None:
    assert not RestorePace().prefers_computing(0, LONG, LONG)
    assert not measured(1000, 1, MIN_SAMPLES - 1).prefers_computing(0, LONG, LONG)


def test_how_far_nobody_has_computed_is_not_guessed() -> None:
    pace = measured(1000, 1, end=LONG - 1)
    assert not pace.prefers_computing(0, LONG, LONG)
    assert pace.prefers_computing(0, LONG // 2, LONG // 2)


def test_what_memory_has_need_not_be_computed() -> None:
    """The alternative begins where memory ends, and reading costs what is not in memory."""
    pace = measured(200, 100)
    assert pace.prefers_computing(LONG // 2, LONG, LONG // 2)
    assert not pace.prefers_computing(0, LONG, LONG // 2)


def test_tokens_far_into_a_prompt_cost_what_those_there_did() -> None:
    pace = RestorePace()
    for _ in range(MIN_SAMPLES):
        pace = pace.computed(0, 1000, 10 * 1000).computed(1023, 2047, 70 * 1024)
    assert pace.computing_ns(0, 2047) == pytest.approx(10 * 511 + 10 * 512 + 70 * 1024)
    assert pace.computing_ns(1500, 1600) == pytest.approx(7000)
    assert pace.computing_ns(0, 2048) is None


def test_after_many_refusals_one_is_restored() -> None:
    pace = measured(1000, 1)
    for _ in range(PROBE_EVERY):
        assert pace.prefers_computing(0, LONG, LONG)
        pace = pace.declined()
    assert not pace.prefers_computing(0, LONG, LONG)
    assert pace.restored(LONG, LONG * 1000).prefers_computing(0, LONG, LONG)


def test_a_store_that_got_faster_is_used_again() -> None:
    pace = measured(1000, 100)
    for _ in range(20):
        pace = pace.restored(LONG, LONG)
    assert not pace.prefers_computing(0, LONG, LONG)


def test_samples_that_tell_nothing_are_left_out() -> None:
    pace = RestorePace()
    assert pace.restored(MIN_TOKENS - 1, 5).restored(MIN_TOKENS, 0).computed(5, 5, 9).computed(0, 5, 0) == pace


class TimedStore(MemoryBlockStore):
    """Whose reads take time. `driver`: whose clock passes."""

    driver: "TimedDriver | None" = None

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        if self.driver is not None:
            self.driver.clock.advance(self.driver.read_s * len(keys))
        return super().get(keys, groups)


class TimedDriver(CacheDriver):
    """Computing a grid chunk takes a second, reading a record so long."""

    read_s = 0.0

    def _prefill(self, job: Job, end: int) -> None:
        self.clock.advance((end - job.position) / GRID)
        super()._prefill(job, end)


def after_restarts(layout: StateLayout, read_s: float) -> tuple[TimedStore, TimedDriver]:
    """A server with empty memory that has computed other prompts and restored some."""
    store, options = TimedStore(), replace(OPTIONS, layout=layout)
    CacheDriver(options, store=store).run(PROMPT)
    driver = TimedDriver(options, hot_bytes=0, store=store)
    store.driver, driver.read_s = driver, read_s
    for number in range(MIN_SAMPLES):
        driver.run([number + 1, *PROMPT])
        assert driver.run(PROMPT).computed == 0
    return store, driver


@KINDS
def test_from_a_slow_store_a_prompt_is_computed_and_that_is_told(layout: StateLayout) -> None:
    _, driver = after_restarts(layout, read_s=10)
    job = driver.run(PROMPT)
    assert job.output == plain_answer(replace(OPTIONS, layout=layout), PROMPT)
    assert (job.computed, job.explanation.reason) == (len(PROMPT) - 1, StopReason.COMPUTED_FASTER)
    assert job.explanation.num_known >= len(PROMPT) - 1 - GRID
    driver.check_idle()


def test_what_was_computed_although_it_is_stored_is_not_stored_again() -> None:
    store, driver = after_restarts(ATTENTION, read_s=10)
    num_records = store.check_integrity().num_records
    assert driver.run(PROMPT).explanation.reason is StopReason.COMPUTED_FASTER
    assert store.check_integrity().num_records == num_records


@KINDS
def test_from_a_fast_store_it_is_restored(layout: StateLayout) -> None:
    _, driver = after_restarts(layout, read_s=0.01)
    job = driver.run(PROMPT)
    assert (job.computed, job.explanation.reason) == (0, StopReason.LAST_TOKEN)


def test_what_memory_has_of_it_is_restored_all_the_same() -> None:
    _, driver = after_restarts(ATTENTION, read_s=10)
    driver.hot.resize(1 << 30)
    driver.run(PROMPT[: MIN_TOKENS // 2])
    job = driver.run(PROMPT)
    assert job.explanation.reason is StopReason.COMPUTED_FASTER
    assert 0 < job.explanation.reused["hot"] <= MIN_TOKENS // 2
    assert job.explanation.reused.keys() == {"hot"}


def test_a_setting_restores_whatever_it_takes() -> None:
    store = TimedStore()
    CacheDriver(OPTIONS, store=store).run(PROMPT)
    driver = TimedDriver(OPTIONS, hot_bytes=0, store=store, restores_always=True)
    store.driver, driver.read_s = driver, 10
    for number in range(MIN_SAMPLES + 1):
        driver.run([number + 1, *PROMPT])
        assert driver.run(PROMPT).computed == 0
