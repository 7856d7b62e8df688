"""The prefix cache service in the situations it exists for, the explanations of prompts that were or were not reused,
and what must not be said to another tenant."""

from dataclasses import replace

from adapters.fake import ATTENTION, HYBRID, UNSUPPORTED, WINDOWED, FakeTokenizer
from adapters.memory.block_store import MemoryBlockStore
from application.events import PrefixAwaited, PrefixMatched, StateCaptured, StateRestored
from domain.ids import ModelId
from domain.models.state_layout import StateLayout
from domain.prefix.explanation import StopReason
from domain.prefix.prompt_content import ForkKind, ForkPoint
from domain.prefix.record import BlockKey, Provenance
from tests.support.stores.cache_driver import BLOCK, GRID, KINDS, CacheDriver, options, plain_answer
from tests.support.stores.stepped_writer import SteppedWriter
from tests.support.stores.store_records import empty

PROMPT = list(range(100, 300))


@KINDS
def test_eight_requests_with_one_fresh_prompt_compute_it_once(layout: StateLayout) -> None:
    driver = CacheDriver(options(layout))
    jobs = [driver.begin(PROMPT) for _ in range(8)]
    driver.finish(*jobs)
    assert sum(job.computed for job in jobs) == len(PROMPT) - 1
    assert [job.output for job in jobs] == [plain_answer(options(layout), PROMPT)] * 8
    assert len(driver.events.of("PrefixAwaited")) == 7
    driver.check_idle()


@KINDS
def test_requests_that_share_a_prefix_being_computed_part_exactly_where_they_differ(layout: StateLayout) -> None:
    driver = CacheDriver(options(layout))
    prompts = [[*PROMPT[:150], *range(1000 * at, 1000 * at + 40)] for at in range(1, 5)]
    jobs = [driver.begin(prompt) for prompt in prompts]
    jobs[0].num_output = 1000
    while not all(job.is_done for job in jobs[1:]):
        for job in jobs:
            driver.step(job)
    assert not jobs[0].is_done
    driver.cancel(jobs[0])
    del jobs[0].output[4:]
    assert [job.computed for job in jobs] == [189, 39, 39, 39]
    assert [job.output for job in jobs] == [plain_answer(options(layout), prompt) for prompt in prompts]


@KINDS
def test_followers_go_on_by_themselves_when_the_one_they_follow_ends(layout: StateLayout) -> None:
    driver = CacheDriver(options(layout))
    leader, second, third = (driver.begin(PROMPT) for _ in range(3))
    for _ in range(3):
        driver.step(leader)
    done = leader.position
    driver.cancel(leader)
    driver.finish(second, third)
    assert second.computed == len(PROMPT) - 1 - done
    assert third.computed == 0
    assert second.output == third.output == plain_answer(options(layout), PROMPT)
    driver.check_idle()


@KINDS
def test_a_cancelled_prefill_is_continued_where_it_stopped(layout: StateLayout) -> None:
    driver = CacheDriver(options(layout), store=MemoryBlockStore())
    job = driver.begin(PROMPT)
    while job.position < 120:
        driver.step(job)
    reached = job.position
    driver.cancel(job)
    again = driver.run(PROMPT)
    assert again.computed == len(PROMPT) - 1 - reached
    assert again.output == plain_answer(options(layout), PROMPT)


@KINDS
def test_a_restart_loses_nothing_that_was_stored(layout: StateLayout) -> None:
    store = MemoryBlockStore()
    before = CacheDriver(options(layout), store=store).run(PROMPT, 40)
    driver = CacheDriver(options(layout), store=store)
    again = driver.begin(PROMPT, 40)
    assert again.cache.poll()
    assert driver.hot.usage().num_pinned >= len(PROMPT) // BLOCK
    driver.finish(again)
    assert (again.computed, again.output) == (0, before.output)
    assert again.explanation.reused.get("store", 0) == len(PROMPT) - 1
    turn = driver.run([*PROMPT, *before.output, *range(5)])
    assert turn.computed <= 5
    assert driver.run(PROMPT).explanation.reused.get("hot", 0) == len(PROMPT) - 1
    driver.check_idle()


def test_two_requests_of_different_tenants_do_not_follow_each_other() -> None:
    driver = CacheDriver(options(ATTENTION))
    jobs = [driver.begin(PROMPT, salt="alice"), driver.begin(PROMPT, salt="bob")]
    driver.finish(*jobs)
    assert [job.computed for job in jobs] == [len(PROMPT) - 1] * 2


def test_exact_mode_resumes_on_the_grid_only_and_bit_identically() -> None:
    sensitive = replace(options(HYBRID), chunk_sensitive=True)
    driver = CacheDriver(sensitive, is_exact=True, store=MemoryBlockStore())
    expected = plain_answer(sensitive, PROMPT, 40)
    assert driver.run(PROMPT, 40, [ForkPoint(75, ForkKind.SYSTEM_END)]).output == expected
    again = driver.run(PROMPT, 40)
    assert again.output == expected
    assert again.explanation.stopped_at % GRID == 0
    assert again.computed < GRID
    assert again.explanation.reason is StopReason.OFF_GRID


def test_exact_mode_does_not_keep_what_was_decoded() -> None:
    sensitive = replace(options(ATTENTION), chunk_sensitive=True)
    driver = CacheDriver(sensitive, is_exact=True, store=MemoryBlockStore())
    prompt = PROMPT[: 2 * GRID + 1]  # prefill ends on the grid, so that only decoding departs from it
    longer = [*prompt, *driver.run(prompt, 3 * GRID).output, *range(GRID)]
    assert driver.run(longer).output == plain_answer(sensitive, longer)


def test_only_what_was_computed_on_the_grid_is_called_prefill() -> None:
    driver = CacheDriver(options(ATTENTION), store=MemoryBlockStore())
    driver.run(PROMPT[:100])
    driver.run(PROMPT)
    assert driver.store is not None
    namespace = driver.store.usage().namespaces[0].info.namespace
    blocks = [key for key in driver.store.keys(namespace) if isinstance(key, BlockKey)]
    records = [record for record in driver.store.get(blocks) if record is not None]
    found = [record.provenance for record in sorted(records, key=lambda record: record.position)]
    on_grid = 99 // GRID * GRID // BLOCK
    assert found == [Provenance.PREFILL] * on_grid + [Provenance.DECODE] * (len(PROMPT) // BLOCK - on_grid)


def test_blocks_that_only_the_store_has_become_hot_when_they_are_computed_again() -> None:
    store = MemoryBlockStore()
    CacheDriver(options(HYBRID), store=store).run(PROMPT)
    driver = CacheDriver(options(HYBRID), store=store)
    edited = [*PROMPT[:90], *range(70)]
    assert driver.run(edited).computed > 70
    assert driver.explain(edited).reused.get("hot", 0) == len(edited) - 1


def test_snapshots_taken_for_followers_outlive_the_request_that_took_them() -> None:
    driver = CacheDriver(options(HYBRID), store=MemoryBlockStore())
    leader = driver.begin(PROMPT)
    followers = [[*PROMPT[: 150 + at], 1, 2] for at in range(6)]
    waiting = [driver.begin(prompt) for prompt in followers]
    driver.finish(leader)
    assert [driver.explain(prompt).stopped_at for prompt in followers] == [150, 151, 152, 153, 154, 155]
    driver.finish(*waiting)


@KINDS
def test_a_long_conversation_keeps_few_snapshots(layout: StateLayout) -> None:
    driver = CacheDriver(options(layout), store=MemoryBlockStore())
    history = list(range(40))
    for turn in range(30):
        job = driver.run(history, 24, [ForkPoint(len(history) - 2, ForkKind.NEXT_TURN)])
        history += [*job.output, *range(5000 + 100 * turn, 5030 + 100 * turn)]
    assert driver.store is not None
    usage = driver.store.usage().namespaces[0]
    assert usage.num_blocks >= len(history) // BLOCK - 3
    assert usage.num_snapshots <= 30
    assert driver.run(history).computed <= 30
    driver.check_idle()


def test_events_tell_what_happened() -> None:
    driver = CacheDriver(options(HYBRID), store=MemoryBlockStore())
    jobs = [driver.begin(PROMPT), driver.begin(PROMPT)]
    driver.finish(*jobs)
    waited = driver.events.of("PrefixAwaited")
    assert isinstance(waited[0], PrefixAwaited)
    assert waited[0].num_shared == len(PROMPT) - 1
    matched = [event for event in driver.events.events if isinstance(event, PrefixMatched)]
    assert [(event.reused.get("hot", 0), event.reason) for event in matched] == [(0, "never-seen"), (199, "last-token")]
    restored = [event for event in driver.events.events if isinstance(event, StateRestored)]
    assert [event.position for event in restored] == [199]
    captured = [event for event in driver.events.events if isinstance(event, StateCaptured)]
    assert sum(event.num_blocks for event in captured) == len(PROMPT) // BLOCK
    assert all(event.size_bytes > 0 for event in captured)


def test_an_unsupported_layout_is_served_without_reuse_and_says_so() -> None:
    driver = CacheDriver(options(UNSUPPORTED))
    assert "FakeOddCache" in driver.note
    for _ in range(2):
        job = driver.run(PROMPT)
        assert job.computed == len(PROMPT) - 1
        assert job.explanation.reason is StopReason.UNSUPPORTED_LAYOUT
        assert "FakeOddCache" in job.explanation.note
    assert driver.explain(PROMPT).reason is StopReason.UNSUPPORTED_LAYOUT


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
    assert driver.explain(PROMPT).note == "what follows was computed, and the store did not take it: queue_full"
    driver.hot.resize(fits)
    driver.run(PROMPT)
    for turn in range(1, 4):
        driver.run([*PROMPT, *range(40 * turn)])
        queue.pump()
    assert driver.explain(PROMPT).note == ""
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
    fresh = driver.explain([1, 2, 3, *PROMPT], salt="bob")
    other = driver.explain(PROMPT, salt="bob")
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
        told = driver.explain(asked).with_text(tokenizer.decode)
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
            told = driver.explain(prompt)
            job = driver.run(prompt)
            assert (told.stopped_at, told.reused.get("hot", 0), told.reason) == (
                job.explanation.stopped_at,
                job.explanation.reused.get("hot", 0),
                job.explanation.reason,
            )


def test_reasons() -> None:
    driver = CacheDriver(options(HYBRID), store=MemoryBlockStore(), hot_bytes=1 << 30)
    assert driver.explain(PROMPT).reason is StopReason.NEVER_SEEN
    driver.run(PROMPT)
    assert driver.explain(PROMPT).reason is StopReason.LAST_TOKEN
    edited = [*PROMPT[:90], *range(40)]
    assert driver.explain(edited).reason is StopReason.NO_SNAPSHOT
    assert driver.explain(edited).num_known == 90 // BLOCK * BLOCK
    assert driver.store is not None
    assert empty(driver.store, driver.store.usage().namespaces[0].info)
    driver.hot.resize(0)
    assert driver.explain(PROMPT).reason is StopReason.EVICTED


def test_explain_finds_the_prompt_under_another_fingerprint() -> None:
    store = MemoryBlockStore()
    CacheDriver(options(ATTENTION, weights=1), store=store).run(PROMPT)
    told = CacheDriver(options(ATTENTION, weights=2), store=store).explain(PROMPT)
    assert told.reason is StopReason.OTHER_FINGERPRINT
    assert told.note == "stored by toy with another weights"


def test_explain_names_another_fingerprint_of_this_model_or_these_weights_only() -> None:
    store = MemoryBlockStore()
    CacheDriver(options(ATTENTION, weights=1), store=store).run(PROMPT)
    store.open_namespace(replace(store.usage().namespaces[0].info, model=ModelId("with its tokenizer")))
    assert CacheDriver(options(ATTENTION, weights=2), store=store).explain(PROMPT).reason is StopReason.NEVER_SEEN
    told = CacheDriver(options(ATTENTION, weights=1), store=store, is_exact=True).explain(PROMPT)
    assert told.reason is StopReason.OTHER_FINGERPRINT


def test_what_reuses_nothing_is_no_full_hit_although_its_last_token_is_its_first() -> None:
    driver = CacheDriver(options(ATTENTION))
    assert driver.explain([7]).reason is StopReason.NEVER_SEEN
    job = driver.begin([7])
    driver.step(job)
    assert job.explanation.reason is StopReason.NEVER_SEEN
