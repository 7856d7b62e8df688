"""One read of the store on its way: made by a worker, looked at by whoever wants its answer.

waiting ──► running ──► done
   │           └──► late: it has run for longer than reads may; whoever waits goes on without it
   └──► abandoned: it never runs
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Watch(Protocol):
    """Who keeps count of the reads that are running."""

    @property
    def is_stuck(self) -> bool:
        """Whether some read is late."""
        ...

    def began(self, read: "StoreRead[T]") -> None: ...

    def ended(self, read: "StoreRead[T]", error: Exception | None) -> None: ...

    def dropped(self, read: "StoreRead[T]") -> None:
        """It was abandoned before it began."""
        ...


class StoreRead(Generic[T]):
    """Called once, by an executor. The rest: any thread."""

    def __init__(self, watch: Watch, work: Callable[[], T], on_done: Callable[[], None]) -> None:
        """`on_done` is called by the worker when there is an answer."""
        self._watch = watch
        self._work: Callable[[], T] | None = work
        self._on_done = on_done
        self._has_begun: bool | None = None
        self.future: Future[T] = Future()

    @property
    def is_done(self) -> bool:
        return self.future.done()

    @property
    def is_hopeless(self) -> bool:
        """Nothing comes of it in time: it is late itself, or waits behind one that is."""
        return not self.is_done and self._watch.is_stuck

    @property
    def answer(self) -> T | None:
        """Once done; None when it failed."""
        has_failed = self.future.cancelled() or self.future.exception() is not None
        return None if has_failed else self.future.result()

    def refuse(self, error: Exception) -> None:
        """It will not be made."""
        self.future.set_exception(error)

    def abandon(self) -> None:
        """Nobody wants the answer any more. Repeating it does nothing."""
        if self.future.cancel():
            self._work = None  # it may wait behind one that hangs, and need not keep a prompt alive there

    def begin(self) -> bool:
        """False when it was abandoned. Part of the call; for tests that stop in the middle of it."""
        if self._has_begun is None:
            self._has_begun = self.future.set_running_or_notify_cancel()
            if self._has_begun:
                self._watch.began(self)
        return self._has_begun

    def __call__(self) -> None:
        work = self._work
        if not self.begin() or work is None:
            self._watch.dropped(self)
            return
        try:
            answer = work()
        except Exception as error:  # against the contract: whoever asked goes on without an answer
            self._watch.ended(self, error)
            self.future.set_exception(error)
        else:
            self._watch.ended(self, None)
            self.future.set_result(answer)
        self._on_done()


__all__ = ("StoreRead", "Watch")
