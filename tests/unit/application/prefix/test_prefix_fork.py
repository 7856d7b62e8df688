"""A further choice of one prompt: its sequence is copied from another's, and then captured by itself."""

from dataclasses import replace

import pytest

from adapters.fake import UNSUPPORTED
from adapters.memory.block_store import MemoryBlockStore
from application.ports.compute import DecodeStart
from domain.ids import RequestId, SequenceId
from domain.models.state_layout import StateLayout
from domain.request.sampling import SamplingParams
from tests.support.stores.cache_driver import BLOCK, KINDS, OPTIONS, CacheDriver, Job

PROMPT = list(range(100, 300))
FORKED = SequenceId(1000)


def forked(driver: CacheDriver, job: Job, num_output: int) -> Job:
    """A second choice from where `job` is now, with a copy of its state."""
    driver.model.open(FORKED)
    driver.model.prefill(FORKED, job.prompt.token_ids[: job.position])
    cache = job.cache.fork(FORKED, RequestId("choice"))
    return Job(FORKED, job.prompt, num_output, cache, position=job.position)


@KINDS
@pytest.mark.parametrize("is_known", [False, True], ids=["computed", "restored"])
def test_both_go_on_and_what_each_says_is_kept(layout: StateLayout, is_known: bool) -> None:
    store = MemoryBlockStore()
    driver = CacheDriver(replace(OPTIONS, layout=layout), store=store)
    if is_known:
        driver.run(PROMPT)
    job = driver.begin(PROMPT, 40)
    while job.position < 192:
        driver.step(job)
    num_lookups = len(driver.events.of("PrefixMatched"))
    choice = forked(driver, job, 40)
    assert (choice.explanation.reused, choice.explanation.num_prompt) == ({"hot": job.position}, len(PROMPT))
    assert len(driver.cache.tiers.open) == 2
    driver.step(job)
    divert(driver, choice)
    driver.finish(job, choice)
    assert job.output != choice.output
    assert len(driver.events.of("PrefixMatched")) == num_lookups + 1  # what the fork goes on from
    driver.check_idle()
    restarted = CacheDriver(replace(OPTIONS, layout=layout), store=store)
    for answer in (job.output, choice.output):
        turn = restarted.run([*PROMPT, *answer, 1, 2, 3])
        assert turn.computed <= 3 + (0 if layout.needs_snapshots else BLOCK)
    restarted.check_idle()


def divert(driver: CacheDriver, choice: Job) -> None:
    """Finish the prompt and draw another first token than the greedy one."""
    prompt = choice.prompt.token_ids
    start = DecodeStart(prompt, SamplingParams(temperature=1.0), seed=7)
    driver.model.start_decode(choice.id, prompt[choice.position :], start)
    choice.cache.prefilled(driver.model, len(prompt) - 1)
    choice.position = len(prompt)


def test_one_that_fails_takes_nothing_from_the_other() -> None:
    driver = CacheDriver(OPTIONS, store=MemoryBlockStore())
    job = driver.begin(PROMPT)
    while job.position < 192:
        driver.step(job)
    choice = forked(driver, job, 4)
    driver.fail(job)
    driver.finish(choice)
    assert driver.run([*PROMPT, *choice.output, 5]).computed <= BLOCK
    driver.check_idle()


def test_one_without_reuse_is_forked_as_well() -> None:
    job = CacheDriver(replace(OPTIONS, layout=UNSUPPORTED)).begin(PROMPT)
    assert job.cache.fork(FORKED, RequestId("choice")).explanation == job.explanation
