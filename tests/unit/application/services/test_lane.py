"""Threads for one kind of blocking work: bounded, timed, and never held by a client that left."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from application.services.lane import OWNER, Lane, LaneFull
from domain.errors import ServerUnavailable
from tests.support.patience import PATIENCE_S


class Hung:
    """Work that does not return until it is let go."""

    def __init__(self) -> None:
        self.num_begun = 0
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self) -> int:
        self.num_begun += 1
        self.begun.set()
        assert self.go.wait(PATIENCE_S)
        return self.num_begun


@pytest.fixture
def hung() -> Iterator[Hung]:
    hung = Hung()
    yield hung
    hung.go.set()


def test_work_is_done_and_its_error_is_the_callers() -> None:
    async def run() -> None:
        lane = Lane("test", 1)
        assert await lane.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await lane.run(divmod, 7, 0)
        assert lane.num_pending == 0
        lane.close()
        with pytest.raises(ServerUnavailable, match="stopping"):
            await lane.run(divmod, 7, 2)
        assert lane.num_pending == 0

    asyncio.run(run())


def test_too_many_calls_are_refused_at_once(hung: Hung) -> None:
    async def run() -> None:
        lane = Lane("test", 1, max_pending=3)
        calls = [asyncio.create_task(lane.run(hung)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ServerUnavailable, match="3 test calls"):
            await lane.run(hung)
        hung.go.set()
        await asyncio.gather(*calls)
        assert lane.num_pending == 0

    asyncio.run(run())


def test_a_wait_that_is_too_long_is_reported(hung: Hung) -> None:
    async def run() -> None:
        lane = Lane("test", 1, timeout_s=0.01)
        with pytest.raises(ServerUnavailable, match="did not answer within"):
            await lane.run(hung)

    asyncio.run(run())


def test_what_nobody_waits_for_any_more_is_passed_over(hung: Hung) -> None:
    async def run() -> None:
        lane = Lane("test", 1)
        first, *others = [asyncio.create_task(lane.run(hung)) for _ in range(4)]
        assert await asyncio.to_thread(hung.begun.wait, PATIENCE_S)
        for call in others:
            call.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert lane.num_pending == 4, "they wait in the executor still"
        hung.go.set()
        await first
        assert await lane.run(int) == 0
        assert hung.num_begun == 1
        assert lane.num_pending == 0

    asyncio.run(run())


def test_closing_cancels_what_waits_and_waits_for_nobody(hung: Hung) -> None:
    lane = Lane("test", 1)
    running, waiting = lane.submit(hung), lane.submit(hung)
    assert hung.begun.wait(PATIENCE_S)
    lane.close()
    assert waiting.cancelled()
    assert not lane.join(0.01)
    hung.go.set()
    assert lane.join(PATIENCE_S)
    assert running.result() == 1
    assert lane.num_pending == 0
    with pytest.raises(ServerUnavailable, match="stopping"):
        lane.submit(hung)


def test_as_many_calls_run_at_once_as_there_are_threads(hung: Hung) -> None:
    lane = Lane("test", 3)
    barrier = threading.Barrier(3)
    assert sorted(
        future.result(PATIENCE_S) for future in [lane.submit(barrier.wait, PATIENCE_S) for _ in range(3)]
    ) == [0, 1, 2]
    held = [lane.submit(hung) for _ in range(3)]
    behind = lane.submit(int)
    assert hung.begun.wait(PATIENCE_S)
    assert not behind.done()
    hung.go.set()
    assert behind.result(PATIENCE_S) == 0
    assert all(future.result(PATIENCE_S) for future in held)


def test_what_was_cancelled_or_is_done_keeps_nothing_alive(hung: Hung) -> None:
    class Prompt:
        """Something large."""

    lane = Lane("test", 1)
    first = lane.submit(hung)
    prompts = [Prompt(), Prompt()]
    kept = [weakref.ref(prompt) for prompt in prompts]
    cancelled, done = lane.submit(id, prompts[0]), lane.submit(id, prompts[1])
    prompts.clear()
    assert cancelled.cancel()
    assert kept[0]() is None
    hung.go.set()
    done.result(PATIENCE_S)
    lane.submit(int).result(PATIENCE_S)  # the thread has gone on
    assert kept[1]() is None
    assert first.result() == 1


def test_an_error_of_the_work_that_is_a_timeout_is_reported_as_it_is() -> None:
    def late() -> None:
        raise TimeoutError("of the work")

    async def run() -> None:
        with pytest.raises(TimeoutError, match="of the work"):
            await Lane("test", 1, timeout_s=PATIENCE_S).run(late)

    asyncio.run(run())


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_call_gave_or_failed_with_is_freed_at_once(fails: bool) -> None:
    class Prompt:
        """Something large."""

    def use(prompt: Prompt) -> Prompt:
        if fails:
            raise ValueError("of the work")
        return prompt

    gc.disable()
    try:
        lane, prompt = Lane("test", 1), Prompt()
        kept = weakref.ref(prompt)
        future = lane.submit(use, prompt)
        del prompt
        assert bool(future.exception(PATIENCE_S)) == fails
        lane.submit(int).result(PATIENCE_S)  # the thread has gone on
        del future
        assert kept() is None, "no cycle keeps it"
    finally:
        gc.enable()


def test_a_client_waits_for_one_call_of_another_that_has_many(hung: Hung) -> None:
    done = list[str]()

    async def submit(owner: str, name: str, cost: float) -> None:
        OWNER.set(owner)
        await lane.run_at(cost, done.append, name)

    async def run() -> None:
        first = asyncio.create_task(lane.run(hung))
        flood = [asyncio.create_task(submit("flood", f"long {number}", 500_000)) for number in range(8)]
        await asyncio.sleep(0)
        other = asyncio.create_task(submit("other", "short", 5))
        await asyncio.sleep(0)
        hung.go.set()
        await asyncio.gather(first, other, *flood)

    lane = Lane("test", 1)
    asyncio.run(run())
    assert done.index("short") <= 1
    assert len(done) == 9


def test_one_client_has_its_share_of_a_lane_at_most(hung: Hung) -> None:
    async def submit(owner: str) -> int:
        OWNER.set(owner)
        await lane.run(hung)
        return lane.num_pending

    async def run() -> None:
        flood = [asyncio.create_task(submit("flood")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(LaneFull, match="2 test calls"):
            await submit("flood")
        others = [asyncio.create_task(submit(owner)) for owner in ("other", "")]
        await asyncio.sleep(0)
        with pytest.raises(LaneFull, match="4 test calls"):
            await submit("late")
        hung.go.set()
        await asyncio.gather(*flood, *others)
        assert lane.num_pending == 0
        await submit("flood")

    lane = Lane("test", 1, max_pending=2)
    asyncio.run(run())


def test_calls_that_were_closed_away_are_no_longer_counted(hung: Hung) -> None:
    lane = Lane("test", 1, max_pending=4)
    running, waiting = lane.submit(hung), lane.submit(int)
    assert hung.begun.wait(PATIENCE_S)
    lane.close()
    assert (waiting.cancelled(), lane.num_pending) == (True, 1)
    hung.go.set()
    running.result(PATIENCE_S)
