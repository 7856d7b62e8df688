"""An executor whose threads nobody has to wait for: a call that never returns keeps its thread, and that is all.

The standard library's joins its threads when the process ends, so that one call hung on a volume would keep the process
from ending.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(Executor):
    """Up to `max_threads`, started as work comes. Work begins in the order submitted. Any thread."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._lock = Lock()
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._is_closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"{self._name} was shut down")
            self._waiting.put((future, lambda: fn(*args, **kwargs)))
            if len(self._threads) < self._max_threads:
                number = len(self._threads)
                thread = Thread(target=self._run, name=f"{self._name}-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work. What was submitted is still done, unless it is cancelled."""
        with self._lock:
            self._is_closed = True
        if cancel_futures:
            self._cancel_waiting()
        for _ in self._threads:
            self._waiting.put(None)
        if wait:
            self.join(None)

    def join(self, timeout_s: float | None) -> bool:
        """After `shutdown`: wait for the threads to end, at most so long in all. False when one is still in a call."""
        deadline_s = monotonic() + timeout_s if timeout_s is not None else None
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - monotonic()) if deadline_s is not None else None)
        return not any(thread.is_alive() for thread in self._threads)

    def _cancel_waiting(self) -> None:
        try:
            while True:
                if (item := self._waiting.get_nowait()) is not None:
                    item[0].cancel()
        except Empty:
            return

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:  # whoever asked is told, as by the standard library's executors
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
            del item, future, work  # an idle thread keeps nothing alive


__all__ = ("DaemonThreads",)
