"""The prefix cache and what waits for the store: usable from the moment it was captured, in the hot tier or not."""

from dataclasses import replace

import pytest

from adapters.fake import HYBRID
from adapters.memory.block_store import MemoryBlockStore
from application.ports.tokenizer import EncodedPrompt
from domain.ids import ModelId
from domain.models.state_layout import StateLayout
from domain.prefix.explanation import StopReason
from domain.prefix.prompt_content import ForkKind, ForkPoint
from domain.prefix.record import BlockKey
from tests.support.stores.cache_driver import BLOCK, KINDS, CacheDriver, options, plain_answer
from tests.support.stores.stepped_writer import SteppedWriter

MODEL = ModelId("toy")
PROMPT = list(range(100, 300))
NEXT = [*PROMPT, 1, 2, 3]


def queued_driver(layout: StateLayout, hot_bytes: int = 1 << 30) -> tuple[CacheDriver, SteppedWriter]:
    """The queue moves when the test says so."""
    store = MemoryBlockStore()
    queue = SteppedWriter(store)
    return CacheDriver(options(layout), store=store, queue=queue, hot_bytes=hot_bytes), queue


@KINDS
@pytest.mark.parametrize("num_steps", [0, 1, 2], ids=["waiting", "being-written", "stored-not-settled"])
def test_a_prompt_that_only_waits_for_the_store_is_restored(layout: StateLayout, num_steps: int) -> None:
    driver, queue = queued_driver(layout)
    driver.run(PROMPT)
    queue.pump(num_steps)
    driver.hot.resize(0)
    assert driver.hot.usage().used_bytes == 0
    told = driver.explain(PROMPT)
    again = driver.run(PROMPT)
    assert (again.computed, again.output) == (0, plain_answer(options(layout), PROMPT))
    assert again.explanation == replace(told, reused={"store": len(PROMPT) - 1})
    assert (told.reused.get("hot", 0), told.reused.get("store", 0), told.reason) == (
        0,
        len(PROMPT) - 1,
        StopReason.LAST_TOKEN,
    )
    following = driver.run(NEXT)
    assert (following.computed, following.output) == (3, plain_answer(options(layout), NEXT))
    driver.check_idle()


@KINDS
def test_what_waits_is_not_offered_again(layout: StateLayout) -> None:
    driver, queue = queued_driver(layout)
    for hot_bytes in (1 << 30, 1 << 30, 0, 0):
        driver.hot.resize(hot_bytes)
        driver.run(PROMPT)
    offered = [record.key for offer in queue._take(1 << 60) or () for record in offer.records]
    blocks = [key for key in offered if isinstance(key, BlockKey)]
    assert len(blocks) == len(set(blocks)) == len(PROMPT) // BLOCK


@KINDS
def test_what_a_restart_would_leave_does_not_count_what_waits(layout: StateLayout) -> None:
    driver, queue = queued_driver(layout)
    driver.run(PROMPT)
    assert driver.cache.num_stored(MODEL, EncodedPrompt.of_text(PROMPT)) == 0
    queue.pump()
    assert driver.cache.num_stored(MODEL, EncodedPrompt.of_text(PROMPT)) == len(PROMPT) - 1


def test_snapshots_that_are_let_go_while_they_wait_are_never_stored() -> None:
    """A long conversation thins its snapshots; the queue does not move until it is over."""
    driver, queue = queued_driver(HYBRID)
    history = list(range(40))
    for turn in range(20):
        job = driver.run(history, 24, [ForkPoint(len(history) - 2, ForkKind.NEXT_TURN)])
        history += [*job.output, *range(5000 + 100 * turn, 5030 + 100 * turn)]
    counts = queue.counts()
    assert counts.dropped["deleted"] > 0
    assert counts.enqueued == counts.queued + counts.dropped["deleted"]
    driver.hot.resize(0)
    queue.pump()
    assert driver.store is not None
    usage = driver.store.usage().namespaces[0]
    assert usage.num_snapshots <= 30
    assert usage.num_snapshots + usage.num_blocks == counts.queued
    assert driver.run(history).computed <= 30
    driver.check_idle()
