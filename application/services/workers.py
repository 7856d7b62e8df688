"""A few threads for one kind of blocking work, so that when it hangs nothing else does.

asyncio's own executor is left to work that always ends: a volume that does not answer would otherwise hold its threads
one request after the other, until nothing is done any more. Nobody waits for these threads when the process ends.

Invariant: at most `max_waiting` calls are under way or wait; a further one is refused, and none is kept for ever by one
that does not return.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from threading import Event, Lock
from typing import TypeVar

from application.services.daemon_threads import DaemonThreads
from domain.errors import ServerUnavailable

T = TypeVar("T")


class Workers:
    """`run` on the event loop. `executor` replaces the threads, for tests; `name` names them and what they do."""

    def __init__(
        self,
        name: str,
        num_threads: int,
        max_waiting: int = 64,
        timeout_s: float | None = None,
        *,
        executor: Executor | None = None,
    ) -> None:
        """`timeout_s`: after so long whoever waits is answered with ServerUnavailable; None waits as long as it takes.
        Threads start when they are needed."""
        self._name = name
        self._max_waiting = max_waiting
        self._timeout_s = timeout_s
        self._executor = executor or DaemonThreads(num_threads, f"cairn-{name}")
        self._lock = Lock()
        self._num_pending = 0

    @property
    def num_pending(self) -> int:
        """Calls under way or waiting, those of clients that left included."""
        return self._num_pending

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """`work(*arguments)` in a thread. Raises what it raises, or ServerUnavailable when too much waits already, or
        it takes too long. Cancelled or timed out, work that has not begun never does; what has cannot be called back.
        """
        with self._lock:
            if self._num_pending >= self._max_waiting:
                raise ServerUnavailable(f"{self._num_pending} {self._name} calls are under way already")
            self._num_pending += 1
        left, context = Event(), contextvars.copy_context()

        def call() -> T:
            return context.run(work, *arguments)

        try:
            future = self._executor.submit(self._run_unless, left, call)
        except RuntimeError as error:  # shut down
            self._done()
            raise ServerUnavailable("the server is stopping") from error
        try:
            async with asyncio.timeout(self._timeout_s):
                # Not cancelled with the waiter: what waits in the executor counts until a thread has passed it over.
                return await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError:
            if future.done():
                raise
            raise ServerUnavailable(f"{self._name} did not answer within {self._timeout_s:g} s") from None
        finally:
            left.set()

    def close(self) -> None:
        """Take no more work; what runs is not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _run_unless(self, left: Event, call: Callable[[], T]) -> T:
        try:
            if left.is_set():
                raise ServerUnavailable("nobody waits any more")
            return call()
        finally:
            self._done()

    def _done(self) -> None:
        with self._lock:
            self._num_pending -= 1


__all__ = ("Workers",)
