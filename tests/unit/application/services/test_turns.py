"""Calls run one at a time, in turns of their owners, and a turn lasts as long as its thread."""

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from application.services.turns import Turns
from tests.support.patience import PATIENCE_S


class Gated:
    """Keeps the order in which calls begin. The first waits at a gate."""

    def __init__(self) -> None:
        self.gate, self.begun, self.names = threading.Event(), threading.Event(), list[str]()

    def first(self) -> None:
        self.begun.set()
        assert self.gate.wait(PATIENCE_S)

    def call(self, name: str) -> Callable[[], str]:
        def work() -> str:
            self.names.append(name)
            return name

        return work


async def _behind_the_first(gated: Gated, turns: Turns) -> "asyncio.Task[None]":
    first = asyncio.create_task(turns.run("flood", 1, gated.first))
    await asyncio.to_thread(gated.begun.wait, PATIENCE_S)
    return first


def test_owners_take_turns_and_short_calls_go_first() -> None:
    gated, turns = Gated(), Turns()

    async def run() -> None:
        first = await _behind_the_first(gated, turns)
        calls = [("flood", 8), ("flood", 8), ("flood", 8), ("other", 6), ("other", 1)]
        sent = [asyncio.create_task(turns.run(name, cost, gated.call(f"{name} {cost}"))) for name, cost in calls]
        await asyncio.sleep(0)
        assert gated.names == []
        gated.gate.set()
        assert await asyncio.gather(*sent) == [f"{name} {cost}" for name, cost in calls]
        await first

    asyncio.run(run())
    assert gated.names == ["flood 8", "other 1", "other 6", "flood 8", "flood 8"]


def test_a_cancelled_call_that_waits_never_begins() -> None:
    gated, turns = Gated(), Turns()

    async def run() -> None:
        first = await _behind_the_first(gated, turns)
        left = asyncio.create_task(turns.run("a", 1, gated.call("left")))
        kept = asyncio.create_task(turns.run("a", 1, gated.call("kept")))
        await asyncio.sleep(0)
        left.cancel()
        gated.gate.set()
        await asyncio.gather(first, kept, left, return_exceptions=True)
        assert left.cancelled()

    asyncio.run(run())
    assert gated.names == ["kept"]


def test_a_cancelled_call_that_runs_keeps_its_turn_until_its_thread_has_ended() -> None:
    gated, turns = Gated(), Turns()

    async def run() -> None:
        first = await _behind_the_first(gated, turns)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        kept = asyncio.create_task(turns.run("a", 1, gated.call("kept")))
        for _ in range(3):
            await asyncio.sleep(0)
        assert gated.names == []
        gated.gate.set()
        assert await kept == "kept"

    asyncio.run(run())


class Inline(ThreadPoolExecutor):
    """Runs calls where they are submitted, so that the steps of the event loop can be counted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future = Future[Any]()
        future.set_result(fn(*args, **kwargs))
        return future


@pytest.mark.parametrize("num_steps", range(8))
def test_no_turn_is_lost_whenever_a_call_is_cancelled(num_steps: int) -> None:
    turns = Turns()

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(Inline())
        _first, left, kept = [asyncio.create_task(turns.run("a", 1, int)) for _ in range(3)]
        for _ in range(num_steps):
            await asyncio.sleep(0)
        left.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert kept.done()
        assert await kept == 0

    asyncio.run(run())


def test_an_error_reaches_its_caller_and_ends_the_turn() -> None:
    turns = Turns()

    async def run() -> None:
        with pytest.raises(ZeroDivisionError):
            await turns.run("a", 1, lambda: 1 // 0)
        assert await turns.run("a", 1, int, "7") == 7

    asyncio.run(run())


def test_the_error_of_a_call_that_was_cancelled_while_it_ran_is_no_unhandled_one() -> None:
    gated, turns, unhandled = Gated(), Turns(), list[Any]()

    def failing() -> None:
        gated.first()
        raise ZeroDivisionError

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
        left = asyncio.create_task(turns.run("a", 1, failing))
        await asyncio.to_thread(gated.begun.wait, PATIENCE_S)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        gated.gate.set()
        await turns.run("a", 1, int)
        gc.collect()

    asyncio.run(run())
    assert unhandled == []
