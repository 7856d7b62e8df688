"""Turns for work in threads, one call at a time, that leave the event loop its share.

The next call begins when the event loop has taken the end of the one before, not when a thread is free: work that ends
faster than the event loop carries it on would collect there, where clients have no turns. Several threads would also
contend with the event loop for the interpreter.

    waiting ──► begun ──► ended ──► the next begins
       └──► cancelled: it never begins        begun and cancelled: its turn lasts until its thread has ended
"""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar

from application.services.fair_queue import FairQueue

T = TypeVar("T")


class Turns:
    """The calls of one kind. Owners take turns by cost, and each one's short calls go first. Event loop only."""

    def __init__(self) -> None:
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._is_taken = False

    async def run(self, owner: str, cost: float, work: Callable[..., T], *arguments: Any) -> T:
        """Returns `work(*arguments)`, run in the caller's context in a thread of the event loop. `cost`: more than 0,
        in any unit that all calls share."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.push(turn, owner, cost)
        if not self._is_taken:
            self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came meanwhile
                self._next()
            raise
        context = copy_context()
        running = loop.run_in_executor(None, lambda: context.run(work, *arguments))
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)

    def _ended(self, running: asyncio.Future[Any]) -> None:
        if not running.cancelled():
            running.exception()  # asyncio would report one that is never read, as of a cancelled call
        self._next()

    def _next(self) -> None:
        self._is_taken = False
        while self._waiting and not self._is_taken:
            turn = self._waiting.pop()
            if not turn.done():
                turn.set_result(None)
                self._is_taken = True
