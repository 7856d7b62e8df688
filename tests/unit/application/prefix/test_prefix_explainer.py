"""What is said about a prompt that was, or was not, reused; and what must not be said to another tenant."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adapters.fake import ATTENTION, HYBRID, LAYOUTS, UNSUPPORTED, WINDOWED, FakeOptions, FakeTokenizer
from adapters.memory.block_store import MemoryBlockStore
from application.ports.tokenizer import EncodedPrompt
from domain.ids import ModelId
from domain.models.state_layout import StateLayout
from domain.prefix.explanation import Explanation, StopReason
from tests.support.stores.cache_driver import BLOCK, VOCAB, CacheDriver
from tests.support.stores.stepped_writer import SteppedWriter
from tests.support.stores.store_records import empty

OPTIONS = FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0)
PROMPT = list(range(100, 300))
KINDS = pytest.mark.parametrize("layout", [ATTENTION, WINDOWED, HYBRID, LAYOUTS["everything"]], ids=lambda _: "")


def options(layout: StateLayout, weights: int = 1) -> FakeOptions:
    return replace(OPTIONS, layout=layout, weights=weights)


def explain(driver: CacheDriver, prompt: Sequence[int], salt: str = "") -> Explanation:
    return driver.cache.explain(ModelId("toy"), EncodedPrompt.of_text(tuple(prompt)), salt)


def test_an_unsupported_layout_is_served_without_reuse_and_says_so() -> None:
    driver = CacheDriver(options(UNSUPPORTED))
    assert "FakeOddCache" in driver.note
    for _ in range(2):
        job = driver.run(PROMPT)
        assert job.computed == len(PROMPT) - 1
        assert job.explanation.reason is StopReason.UNSUPPORTED_LAYOUT
        assert "FakeOddCache" in job.explanation.note
    assert explain(driver, PROMPT).reason is StopReason.UNSUPPORTED_LAYOUT


def test_what_came_too_fast_for_the_store_is_said_and_stored_by_later_turns() -> None:
    whole = MemoryBlockStore()
    CacheDriver(options(ATTENTION), store=whole).run(PROMPT)
    store = MemoryBlockStore()
    queue = SteppedWriter(store, max_bytes=whole.usage().namespaces[0].raw_bytes // 2)
    driver = CacheDriver(options(ATTENTION), store=store, queue=queue)
    driver.run(PROMPT)
    queue.pump()
    stored = CacheDriver(options(ATTENTION), store=store).run(PROMPT, persist=False)
    assert 0 < stored.computed < len(PROMPT) - 1, "a part of the chain, from its start"

    fits = driver.hot.usage().budget_bytes
    driver.hot.resize(0)
    assert explain(driver, PROMPT).note == "what follows was computed, and the store did not take it: queue_full"
    driver.hot.resize(fits)
    driver.run(PROMPT)
    for turn in range(1, 4):
        driver.run([*PROMPT, *range(40 * turn)])
        queue.pump()
    assert explain(driver, PROMPT).note == ""
    assert CacheDriver(options(ATTENTION), store=store).run(PROMPT).computed == 0


def test_disabled_reuse_says_so() -> None:
    driver = CacheDriver(options(ATTENTION), is_enabled=False)
    driver.run(PROMPT)
    job = driver.run(PROMPT)
    assert (job.computed, job.explanation.reason) == (len(PROMPT) - 1, StopReason.DISABLED)


@KINDS
def test_tenants_share_nothing_and_cannot_tell(layout: StateLayout) -> None:
    driver = CacheDriver(options(layout), store=MemoryBlockStore())
    driver.run(PROMPT, salt="alice")
    fresh = explain(driver, [1, 2, 3, *PROMPT], salt="bob")
    other = explain(driver, PROMPT, salt="bob")
    assert (other.reason, other.note, other.divergence) == (fresh.reason, fresh.note, fresh.divergence)
    assert driver.run(PROMPT, salt="bob").computed == len(PROMPT) - 1
    assert driver.run(PROMPT, salt="alice").computed == 0


@KINDS
def test_explain_names_the_first_differing_token_and_its_surroundings(layout: StateLayout) -> None:
    tokenizer = FakeTokenizer()
    driver = CacheDriver(replace(options(layout), alphabet=range(32, 127)), store=MemoryBlockStore())
    stored = tokenizer.encode("You are a helpful assistant. Today is Monday, the 3rd of May. What is new?").token_ids
    driver.run(stored)
    asked = tokenizer.encode("You are a helpful assistant. Today is Friday, the 7th of May. What is new?").token_ids
    for hot in (True, False):
        if not hot:
            driver.hot.resize(0)
        told = explain(driver, asked).with_text(tokenizer.decode)
        assert told.divergence is not None
        assert told.divergence.position == len("You are a helpful assistant. Today is ")
        assert told.divergence.before == "t. Today is "
        assert told.divergence.prompt == "Friday, the "
        assert told.divergence.stored.startswith("Monday, t"[: len(told.divergence.stored)])
        assert told.divergence.stored
        assert f"diverged={told.divergence.position}" in told.header()


def test_explain_predicts_what_a_request_then_finds() -> None:
    for layout in (ATTENTION, HYBRID, WINDOWED):
        driver = CacheDriver(options(layout), store=MemoryBlockStore())
        driver.run(PROMPT)
        for prompt in (PROMPT, [*PROMPT, 1, 2, 3], [*PROMPT[:70], 1, 2, 3], [9, 9, 9]):
            told = explain(driver, prompt)
            job = driver.run(prompt)
            assert (told.stopped_at, told.reused.get("hot", 0), told.reason) == (
                job.explanation.stopped_at,
                job.explanation.reused.get("hot", 0),
                job.explanation.reason,
            )


def test_reasons() -> None:
    driver = CacheDriver(options(HYBRID), store=MemoryBlockStore(), hot_bytes=1 << 30)
    assert explain(driver, PROMPT).reason is StopReason.NEVER_SEEN
    driver.run(PROMPT)
    assert explain(driver, PROMPT).reason is StopReason.LAST_TOKEN
    edited = [*PROMPT[:90], *range(40)]
    assert explain(driver, edited).reason is StopReason.NO_SNAPSHOT
    assert explain(driver, edited).num_known == 90 // BLOCK * BLOCK
    assert driver.store is not None
    assert empty(driver.store, driver.store.usage().namespaces[0].info)
    driver.hot.resize(0)
    assert explain(driver, PROMPT).reason is StopReason.EVICTED


def test_explain_finds_the_prompt_under_another_fingerprint() -> None:
    store = MemoryBlockStore()
    CacheDriver(options(ATTENTION, weights=1), store=store).run(PROMPT)
    told = explain(CacheDriver(options(ATTENTION, weights=2), store=store), PROMPT)
    assert told.reason is StopReason.OTHER_FINGERPRINT
    assert told.note == "stored by toy with another weights"
