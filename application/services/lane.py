"""A lane: a small thread pool for one kind of work that may hang or take long, so that no other work waits for it.

asyncio's own threads are left to work that always ends: a volume that does not answer would occupy all of them. A call
that never returns occupies one thread of its lane and nothing else: the end of the process does not wait for a lane,
and callers have a deadline.

    waiting ──► running ──► done, or failed
       └──► cancelled: it never runs and holds no references; it counts until a thread has skipped it
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from functools import partial
from threading import Condition, Thread
from typing import Any, Generic, ParamSpec, TypeVar

from application.services.fair_queue import FairQueue
from domain.errors import ServerUnavailable

IDLE_IN = "Lane._next"
"""The function in which an idle thread of a lane waits, for readers of stacks."""

MAX_SHARES = 2
"""The owners that may have as many calls waiting or running as one may."""

OWNER: ContextVar[str] = ContextVar("owner", default="")
"""The client that work is done for, its key's name or its address; empty for the server's own work."""

P = ParamSpec("P")
T = TypeVar("T")


class LaneFull(ServerUnavailable):
    """The owner has as many calls waiting or running as one may have, or all have."""


class Call(Generic[T]):
    """One piece of work. A thread of its lane calls `begin` and, if that is True, `finish`."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self.count_down: Callable[[], None] = lambda: None
        self._work = [work]
        # The future must not refer to its call: in a reference cycle large results would outlive their use.
        self.future.add_done_callback(partial(_clear, self._work))

    @property
    def is_done(self) -> bool:
        return self.future.done()

    @property
    def answer(self) -> T | None:
        """The result, once done; None when it was cancelled or failed."""
        has_failed = self.future.cancelled() or self.future.exception() is not None
        return None if has_failed else self.future.result()

    def abandon(self) -> None:
        """Abandons the call: work that has not begun never does. Idempotent."""
        self.future.cancel()

    def begin(self) -> bool:
        """Returns False if it was cancelled."""
        return self.future.set_running_or_notify_cancel()

    def finish(self) -> None:
        future = self.future
        try:
            result = self._work[0]()
        except BaseException as error:  # the caller gets it, as from the standard library's executors
            try:
                self.ended(error)
            finally:
                future.set_exception(error)
                del self, future  # the error holds this frame, which must not hold the error
        else:
            try:
                self.ended(None)
            finally:
                future.set_result(result)

    def ended(self, error: BaseException | None) -> None:
        """Called when the call has ended, before the future is resolved."""
        self.count_down()


def _clear(work: list[Callable[[], T]], _future: "Future[T]") -> None:
    work.clear()


class Lane:
    """Any thread, except for `run`. Threads start on demand. Owners take turns by the cost of their calls, and each
    one's short calls go first; calls of one owner that cost the same begin in the order submitted."""

    def __init__(
        self, name: str, num_threads: int, *, max_pending: int | None = None, timeout_s: float | None = None
    ) -> None:
        """`name`: of the work, for threads and errors. `max_pending`: calls of one owner that may wait or run; one
        more, or one more than MAX_SHARES times as many of all, is refused. `timeout_s`: the deadline of `run`. None is
        no limit."""
        self.name = name
        self._num_threads = num_threads
        self._max_pending = max_pending
        self._timeout_s = timeout_s
        self._changed = Condition()
        self._waiting: FairQueue[Call[Any]] = FairQueue()
        self._num_pending = self._num_threads_live = 0
        self._pending_of: Counter[str] = Counter()
        self._is_closed = False

    @property
    def num_pending(self) -> int:
        """Calls that wait or run, including cancelled ones that no thread has skipped yet."""
        return self._num_pending

    def start(self, call: Call[T], cost: float = 1) -> "Future[T]":
        """`cost`: of the call beside the others of its lane. Raises LaneFull, and ServerUnavailable after `close`."""
        owner = OWNER.get()
        with self._changed:
            if self._is_closed:
                raise ServerUnavailable("the server is stopping")
            most, num_own = self._max_pending, self._pending_of[owner]
            if most is not None and (num_own >= most or self._num_pending >= MAX_SHARES * most):
                raise LaneFull(f"{self._num_pending} {self.name} calls are under way already")
            self._num_pending += 1
            self._pending_of[owner] += 1
            call.count_down = partial(self._count_down, owner)
            self._waiting.push(call, owner, cost)
            self._wake()
        return call.future

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Start `work(*args, **kwargs)`; raises as `start` does."""
        return self.start(Call(lambda: work(*args, **kwargs)))

    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns the result of `work`, as `run_at` does, at a cost of 1."""
        return await self.run_at(1, work, *args, **kwargs)

    async def run_at(self, cost: float, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns the result of `work`, run in the caller's context. Event loop only. Raises its error, the errors of
        `start`, and ServerUnavailable after `timeout_s`. Cancelled or timed out, work that has not begun never does."""
        context = copy_context()
        future = self.start(Call(lambda: context.run(work, *args, **kwargs)), cost)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout_s)
        except TimeoutError:
            if self._timeout_s is None or (future.done() and not future.cancelled()):
                raise  # the work's own timeout
            raise ServerUnavailable(f"{self.name} did not answer within {self._timeout_s:g} s") from None

    def close(self) -> None:
        """Refuse more work and cancel waiting calls. Running calls are not waited for."""
        with self._changed:
            self._is_closed = True
            waiting = [self._waiting.pop() for _ in range(len(self._waiting))]
            self._changed.notify_all()
        for call in waiting:
            call.future.cancel()
            call.count_down()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for running calls, after `close`. Returns False if one still runs after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._num_threads_live, timeout_s)

    def _wake(self) -> None:
        """Wakes or starts a thread for a waiting call. Called with the lock held."""
        self._changed.notify()
        if self._num_threads_live < self._num_threads:
            name = f"cairn-{self.name}-{self._num_threads_live}"
            self._num_threads_live += 1
            Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        try:
            while (call := self._next()) is not None:
                self._do(call)
                del call  # an idle thread holds no references
        finally:
            with self._changed:
                self._num_threads_live -= 1
                self._changed.notify_all()

    def _next(self) -> Call[Any] | None:
        """Returns the next call; None once the lane is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            return self._waiting.pop() if self._waiting else None

    def _do(self, call: Call[Any]) -> None:
        if call.begin():
            call.finish()
        else:
            call.count_down()
        del call  # as in Call.finish

    def _count_down(self, owner: str) -> None:
        with self._changed:
            self._num_pending -= 1
            self._pending_of[owner] -= 1
            if not self._pending_of[owner]:
                del self._pending_of[owner]
