"""Threads for one kind of blocking work: bounded, timed, and never held by a client that left."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from application.services.lane import Lane
from domain.errors import ServerUnavailable

PATIENCE_S = 20.0


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


def test_who_waits_too_long_is_told(hung: Hung) -> None:
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
