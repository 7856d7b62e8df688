"""States of ended sequences: who goes on from them, who does not, and when they are gone."""

from dataclasses import replace
from typing import Any

import pytest

from adapters.fake import LAYOUTS, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.ports.state_access import LeftState
from application.services.prefix.live_tier import LiveState
from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.prefix.fingerprint import EVERYTHING, NamespaceFilter
from domain.prefix.hashing import BlockChain
from domain.prefix.prompt_content import BlockGrid, EncodedPrompt, ForkKind, ForkPoint
from domain.prefix.record import Namespace
from tests.support.stores.cache_driver import GRID, VOCAB, CacheDriver, plain_answer

TOY = FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0)
HYBRID = replace(TOY, layout=LAYOUTS["hybrid"])
FIRST = tuple(range(1, 101))
MORE = tuple(range(5_000, 5_020))
ALL = 1 << 30


def driver_of(options: FakeOptions = TOY, **more: Any) -> CacheDriver:
    return CacheDriver(options, **{"live_bytes": ALL, **more})


def next_turn(driver: CacheDriver, prompt: tuple[int, ...] = FIRST, **more: Any) -> tuple[int, ...]:
    """A turn, and the prompt that goes on from it."""
    return (*prompt, *driver.run(prompt, **more).output, *MORE)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "unsupported"])
def test_the_next_turn_goes_on_where_the_answer_ended(layout: str) -> None:
    options = replace(TOY, layout=LAYOUTS[layout])
    driver = driver_of(options, hot_bytes=0)
    prompt = next_turn(driver)
    job = driver.run(prompt)
    assert job.explanation.reused.keys() == {"live"}
    assert job.explanation.stopped_at >= len(prompt) - len(MORE) - 1
    assert job.output == plain_answer(options, prompt)
    assert driver.live.usage().taken == 1
    assert not driver.events.of("StateRestored"), "nothing is fetched or copied"
    driver.check_idle()


@pytest.mark.parametrize("options", [TOY, HYBRID], ids=["attention", "hybrid"])
def test_the_second_of_two_that_go_on_from_it_uses_records(options: FakeOptions) -> None:
    driver = driver_of(options)
    prompt = next_turn(driver)
    other = (*prompt[: -len(MORE)], 9, 8, 7)
    jobs = [driver.begin(prompt), driver.begin(other)]
    driver.finish(*jobs)
    assert [set(job.explanation.reused) for job in jobs] == [{"live"}, {"hot"}]
    assert [job.output for job in jobs] == [plain_answer(options, job.prompt.token_ids) for job in jobs]
    driver.check_idle()


def test_who_is_admitted_has_it_for_itself_and_it_gives_way_to_nothing() -> None:
    driver = driver_of(hot_bytes=0)
    prompt = next_turn(driver)
    waiting, admitted = driver.submit(prompt), driver.submit(prompt)
    for job in (waiting, admitted):
        job.cache.prepare(ahead=True)
    assert waiting.cache.takes_over == admitted.cache.takes_over
    assert waiting.cache.takes_over is not None, "who waits knows of it"
    driver.admit(admitted)
    assert driver.live.held_bytes == 0
    assert driver.live.shrink(0) == 0
    driver.live.sweep()
    waiting.cache.poll()
    assert waiting.cache.takes_over is None
    assert admitted.cache.takes_over is not None
    driver.check()
    driver.finish(admitted)
    assert admitted.explanation.reused.keys() == {"live"}


def test_what_was_not_taken_over_in_the_end_is_there_for_others() -> None:
    driver = driver_of(hot_bytes=0)
    prompt = next_turn(driver)
    num_bytes = driver.live.held_bytes
    driver.cancel(driver.begin(prompt))
    assert driver.live.held_bytes == num_bytes
    assert driver.run(prompt).explanation.reused.keys() == {"live"}
    driver.check_idle()


def test_who_is_charged_for_taking_over_does_so_even_if_records_reach_further_by_then() -> None:
    """The state would be held beside what it restores, for which there is no room."""
    driver = driver_of()
    prompt = (*next_turn(driver), *range(8_000, 8_100))
    waiting, other = driver.submit(prompt), driver.submit(prompt, restores=False)
    waiting.cache.prepare(ahead=True)
    driver.admit(other)
    while other.position < len(prompt):
        driver.step(other)
    driver.fail(other)
    driver.admit(waiting)
    driver.finish(waiting)
    assert waiting.explanation.reused.keys() == {"live"}


def test_of_all_that_is_left_what_somebody_waits_for_goes_last() -> None:
    driver = driver_of(hot_bytes=0)
    prompts = [tuple(range(at, at + 100)) for at in (1_000, 2_000, 3_000)]
    turns = [next_turn(driver, prompt) for prompt in prompts]
    waiting = driver.submit(turns[0])
    waiting.cache.prepare(ahead=True)
    driver.live.shrink(driver.live.held_bytes // 2)
    assert waiting.cache.takes_over is not None
    driver.live.shrink(0)
    assert waiting.cache.takes_over is None
    driver.cancel(waiting)


def test_a_repeat_cuts_the_answer_off_again() -> None:
    driver = driver_of()
    first = driver.run(FIRST)
    again = driver.run(FIRST)
    assert again.explanation.reused == {"live": len(FIRST) - 1}
    assert again.output == first.output


def test_who_only_begins_alike_takes_nothing() -> None:
    driver = driver_of()
    driver.run(FIRST)
    other = driver.run((*FIRST[:40], *MORE))
    assert set(other.explanation.reused) == {"hot"}
    assert set(driver.run((*FIRST, *MORE)).explanation.reused) == {"live"}


def test_a_long_answer_that_the_next_turn_drops_is_cut_off() -> None:
    """As where a template renders earlier reasoning no more: the fork point says from where."""
    driver, fork = driver_of(), 60
    driver.run(FIRST, 200, forks=[ForkPoint(fork, ForkKind.NEXT_TURN)])
    assert driver.run((*FIRST[:fork], *MORE)).explanation.reused == {"live": fork}


def test_records_that_reach_further_win() -> None:
    driver = driver_of()
    prompt = next_turn(driver)
    driver.run(prompt)
    driver.live.shrink(0)
    driver.run(FIRST)
    assert set(driver.run(prompt).explanation.reused) == {"hot"}


def test_exact_mode_goes_on_at_grid_positions_of_the_prompt_alone() -> None:
    options = replace(TOY, chunk_sensitive=True)
    driver = driver_of(options, is_exact=True, hot_bytes=0)
    prompt = next_turn(driver)
    job = driver.run(prompt)
    assert job.explanation.reused == {"live": len(FIRST) // GRID * GRID}
    assert job.output == plain_answer(options, prompt)


def test_another_salt_finds_nothing() -> None:
    driver = driver_of(hot_bytes=0)
    prompt = next_turn(driver, salt="alice")
    assert driver.run(prompt, salt="bob").explanation.reused == {}
    assert set(driver.run(prompt, salt="alice").explanation.reused) == {"live"}


@pytest.mark.parametrize("choice", [EVERYTHING, NamespaceFilter("toy")], ids=["everything", "model"])
def test_what_was_cleared_is_never_given_out(choice: NamespaceFilter) -> None:
    driver = driver_of()
    prompt = next_turn(driver)
    waiting = driver.begin(prompt)
    running = driver.begin(MORE)
    driver.step(running)
    driver.cache.clear(choice.model, None)
    assert driver.live.usage().num_states == 1
    driver.cache.tidy()
    assert driver.live.usage().num_states == 0
    driver.finish(waiting, running)
    assert waiting.explanation.reused == {}
    assert driver.live.usage().num_states == 1, "what ran before leaves nothing"
    driver.check_idle()


def test_the_longest_unused_goes_when_there_is_no_room() -> None:
    one = driver_of()
    one.run(FIRST)
    driver = driver_of(live_bytes=one.live.held_bytes * 5 // 2)
    prompts = [tuple(range(at, at + 100)) for at in (1_000, 2_000, 3_000)]
    for prompt in prompts:
        driver.run(prompt)
    driver.hot.resize(0)
    found = [driver.tiers.live.usage().num_states, driver.live.usage().evicted]
    assert found == [2, 1]
    assert driver.run((*prompts[0], *MORE)).explanation.reused == {}
    driver.check_idle()


def test_a_state_larger_than_the_budget_is_not_kept() -> None:
    driver = driver_of(live_bytes=100)
    driver.run(FIRST)
    assert driver.live.usage().num_states == 0
    driver.check_idle()


def test_who_failed_leaves_nothing_and_who_was_cancelled_what_it_had() -> None:
    driver = driver_of(hot_bytes=0)
    for end in (driver.fail, driver.cancel):
        assert driver.live.usage().num_states == 0
        job = driver.begin(FIRST)
        for _ in range(3):
            driver.step(job)
        end(job)
    assert driver.run(FIRST).explanation.reused == {"live": 2 * GRID}


def test_it_ends_with_its_model() -> None:
    driver = driver_of()
    driver.run(FIRST)
    driver.cache.detach(driver.model.description.id)
    assert driver.live.usage().num_states == 0
    driver.check_idle()


def test_a_store_that_lacks_its_blocks_gets_them() -> None:
    """Computed for a request that must not be stored, and gone on from by one that may."""
    for hot_bytes in (0, ALL):
        store = MemoryBlockStore()
        driver = driver_of(store=store, hot_bytes=hot_bytes)
        prompt = next_turn(driver, persist=False)
        assert not store.usage().stored_bytes
        job = driver.run(prompt, 40)
        assert set(job.explanation.reused) == {"live"}
        whole = len(prompt) // 16 * 16
        assert (driver.cache.num_stored(driver.model.description.id, EncodedPrompt.of_text(prompt)) or 0) >= whole


def test_what_is_found_is_predicted() -> None:
    driver = driver_of()
    prompt = next_turn(driver)
    told = driver.cache.explain(driver.model.description.id, driver.submit(prompt).prompt)
    found = driver.run(prompt).explanation
    assert (told.reused, told.reason) == (found.reused, found.reason)


def test_a_prompt_without_a_block_in_common_is_not_compared_token_by_token() -> None:
    """On the grid it could not go on from there, and many states may begin at the same place."""

    class Compared(BlockChain):
        def num_shared(self, other: BlockChain) -> int:
            raise AssertionError("compared")

    namespace = Namespace(bytes(32))
    size, grid = 16, BlockGrid(16, 64, is_exact=True)
    of_state, of_prompt = (IdRow((first, *range(1, 4 * size))) for first in (5, 6))
    unused: Any = None
    left = LeftState(4 * size, 1, 1)
    state = LiveState(SequenceId(1), unused, BlockChain(namespace, size, of_state), unused, "toy", left, 1, 4 * size)
    assert state.reach(Compared(namespace, size, of_prompt), grid) == 0
    with pytest.raises(AssertionError, match="compared"):
        state.reach(Compared(namespace, size, of_state), grid)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "unsupported"])
def test_a_state_that_computed_nothing_since_it_was_restored_is_not_kept(layout: str) -> None:
    options = replace(TOY, layout=LAYOUTS[layout])
    driver = driver_of(options)
    driver.run(FIRST)
    driver.live.shrink(0)
    again = driver.begin((*FIRST, *MORE))
    driver.step(again)
    assert again.position
    driver.cancel(again)
    assert driver.live.usage().num_states == 0
    driver.check_idle()


@pytest.mark.parametrize("layout", ["windowed", "hybrid", "everything"])
def test_what_cannot_be_cut_is_taken_over_at_its_own_position_only(layout: str) -> None:
    options = replace(TOY, layout=LAYOUTS[layout])
    driver = driver_of(options, hot_bytes=0)
    prompt = next_turn(driver)
    assert driver.run((*prompt[: -len(MORE) - 2], *MORE)).explanation.reused == {}
    assert driver.run(prompt).explanation.reused.keys() == {"live"}
