"""A sequence that computes its whole prompt, whatever is stored: it restores nothing, and captures what is missing."""

import pytest

from adapters.fake import ATTENTION, HYBRID, LAYOUTS, WINDOWED, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.events import StateCaptured
from domain.models.state_layout import StateLayout
from domain.prefix.explanation import StopReason
from tests.support.stores.cache_driver import VOCAB, CacheDriver, plain_answer

PROMPT = list(range(100, 300))
KINDS = pytest.mark.parametrize(
    "layout",
    [ATTENTION, WINDOWED, HYBRID, LAYOUTS["everything"]],
    ids=["attention", "windowed", "hybrid", "everything"],
)


def options(layout: StateLayout) -> FakeOptions:
    return FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0, layout=layout)


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


def test_where_nothing_is_ever_reused_that_is_the_reported_reason() -> None:
    driver = CacheDriver(options(ATTENTION), is_enabled=False)
    assert driver.run(PROMPT, restores=False).explanation.reason is StopReason.DISABLED
