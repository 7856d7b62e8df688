"""Random workloads over every layout: the cache changes no answer, and reuses what is possible."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.fake import LAYOUTS, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from domain.prefix.prompt_content import ForkKind, ForkPoint
from tests.support.effort import drawn
from tests.support.stores.cache_driver import BLOCK, VOCAB, CacheDriver, Job, plain_answer

OPTIONS = FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0)
LAYOUT_NAMES = [name for name in LAYOUTS if name != "unsupported"]


def options_of(name: str, **changes: bool) -> FakeOptions:
    return replace(OPTIONS, layout=LAYOUTS[name], **changes)


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[list[int], tuple[ForkPoint, ...], int]]:
    """Prompts that share prefixes: each continues, edits or repeats an earlier one."""
    made: list[tuple[list[int], tuple[ForkPoint, ...], int]] = []
    for _ in range(draw(st.integers(1, 6))):
        base = draw(st.sampled_from([prompt for prompt, _, _ in made])) if made else []
        keep = draw(st.integers(0, len(base)))
        fresh = draw(st.integers(0 if keep > 1 else 2, 70))
        seed = draw(st.integers(0, 3)) * 1000
        prompt = base[:keep] + [seed + at for at in range(fresh)]
        forks = draw(st.sets(st.integers(1, len(prompt)), max_size=2))
        points = tuple(ForkPoint(at, draw(st.sampled_from(list(ForkKind)))) for at in sorted(forks))
        made.append((prompt, points, draw(st.integers(1, 40))))
    return made


@pytest.mark.parametrize("name", LAYOUT_NAMES)
@settings(max_examples=drawn(40), deadline=None)
@given(workloads(), st.booleans(), st.booleans(), st.sampled_from([4_000, 20_000, 1 << 30]), st.booleans())
def test_answers_are_those_of_a_run_without_a_cache(
    name: str,
    work: list[tuple[list[int], tuple[ForkPoint, ...], int]],
    is_exact: bool,
    has_store: bool,
    hot_bytes: int,
    runs_ahead: bool,
) -> None:
    """Exact mode is held to more: there even the partition into chunks enters the state."""
    options = options_of(name, chunk_sensitive=is_exact, runs_ahead=runs_ahead)
    store = MemoryBlockStore() if has_store else None
    driver = CacheDriver(options, store=store, hot_bytes=hot_bytes, is_exact=is_exact)
    for prompt, forks, num_output in work:
        job = driver.run(prompt, num_output, forks)
        assert job.output == plain_answer(options, prompt, num_output)
        told = job.explanation
        assert told.stopped_at + job.computed == len(prompt) - 1
        driver.check()
    driver.check_idle()


@pytest.mark.parametrize("name", LAYOUT_NAMES)
@settings(max_examples=drawn(25), deadline=None)
@given(workloads(), st.data())
def test_interleaved_cancelled_and_failed_requests_leave_nothing_behind(
    name: str, work: list[tuple[list[int], tuple[ForkPoint, ...], int]], data: st.DataObject
) -> None:
    options = options_of(name)
    driver = CacheDriver(
        options, store=MemoryBlockStore(60_000), hot_bytes=data.draw(st.sampled_from([0, 9_000, 1 << 30]))
    )
    jobs: list[tuple[Job, list[int], int]] = []
    for prompt, forks, num_output in work:
        jobs.append((driver.begin(prompt, num_output, forks), prompt, num_output))
        for _ in range(data.draw(st.integers(0, 6))):
            driver.step(data.draw(st.sampled_from(jobs))[0])
        if data.draw(st.integers(0, 3)) == 0:
            driver.cancel(data.draw(st.sampled_from(jobs))[0])
        if data.draw(st.integers(0, 5)) == 0:
            driver.fail(data.draw(st.sampled_from(jobs))[0])
        driver.check()
    driver.finish(*[job for job, _, _ in jobs])
    for job, prompt, num_output in jobs:
        if len(job.output) == num_output:
            assert job.output == plain_answer(options, prompt, num_output)
    driver.check_idle()


@pytest.mark.parametrize("name", LAYOUT_NAMES)
@settings(max_examples=drawn(25), deadline=None)
@given(st.integers(2, 150), st.integers(1, 60), st.integers(1, 30))
def test_repeats_and_next_turns_compute_next_to_nothing(name: str, length: int, num_output: int, fresh: int) -> None:
    driver = CacheDriver(options_of(name), store=MemoryBlockStore())
    prompt = list(range(length))
    first = driver.run(prompt, num_output)
    assert driver.run(prompt, num_output).computed == 0
    longer = [*prompt, *first.output, *range(9000, 9000 + fresh)]
    # The last token of the answer was never fed; an end close behind the prompt's has no snapshot of its own.
    assert driver.run(longer).computed <= fresh + (0 if num_output > BLOCK else num_output)
    driver.check_idle()
