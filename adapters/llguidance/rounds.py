"""Small pieces of work of several sequences in one hand-over.

A mask takes a few microseconds, and to hand one to a worker some tens of them, in which the worker wants the
interpreter's lock. So what is asked for until a worker begins is one round, done by that worker piece by piece. What
comes later is a round of its own, of another worker: a piece that hangs holds up what was asked for with it, no more.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from threading import Lock
from typing import Generic, TypeVar

from application.services.lane import Lane

T = TypeVar("T")


class Rounds(Generic[T]):
    """Any thread. `lane` does the work."""

    def __init__(self, lane: Lane | Executor) -> None:
        self._lane = lane
        self._lock = Lock()
        self._waiting: deque[tuple[Callable[[], T], Future[T]]] = deque()

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """What `work` gives or raises; cancelled if the lane is closed before. Raises what the lane's `submit` does."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.append((work, future))
            is_first = len(self._waiting) == 1
        if is_first:
            try:
                self._lane.submit(self._serve).add_done_callback(self._give_up)
            except BaseException:
                self._cancel()
                raise
        return future

    def _take(self) -> "deque[tuple[Callable[[], T], Future[T]]]":
        with self._lock:
            taken, self._waiting = self._waiting, deque()
        return taken

    def _serve(self) -> None:
        taken = self._take()
        while taken:
            work, future = taken.popleft()
            try:
                result = work()
            except BaseException as error:  # whoever asked is told
                future.set_exception(error)
                del future  # an error keeps the frames that it passed, and must not keep itself by them
            else:
                future.set_result(result)

    def _give_up(self, served: "Future[None]") -> None:
        if served.cancelled():
            self._cancel()

    def _cancel(self) -> None:
        for _, future in self._take():
            future.cancel()


__all__ = ("Rounds",)
