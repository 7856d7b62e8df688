"""A lane that begins nothing until it is released."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any

from application.services.lane import Lane


class HeldWorkers(Lane):
    """Any thread. What was submitted runs in a thread of its own from `release` on."""

    def __init__(self) -> None:
        super().__init__("held", 0)
        self._lock = Lock()
        self._held: list[Callable[[], None]] | None = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)

        with self._lock:
            if self._held is not None:
                self._held.append(run)
                return future
        Thread(target=run, daemon=True).start()
        return future

    @property
    def num_held(self) -> int:
        return len(self._held or [])

    def release(self) -> None:
        with self._lock:
            held, self._held = self._held or [], None
        for run in held:
            Thread(target=run, daemon=True).start()
