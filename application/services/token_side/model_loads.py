"""Loads under way, a piece of the oldest one at a time, so that a step of running requests fits between two pieces.

Whoever asked for a load has its answer when the last piece is done, after the batch that tells of it. Compute thread
only, but for `wake`, which workers call.
"""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias, TypeVar

from application.ports.engine import EngineModel
from application.services.faults import bare
from domain.errors import DomainError

T = TypeVar("T")

Pieces: TypeAlias = Generator[Future[Any] | None, None, EngineModel]


class ModelLoads:
    """`deliver` hands over what a load has told before whoever asked is answered; `wake` is called when a load that
    waits for a worker may go on."""

    def __init__(self, deliver: Callable[[], object], wake: Callable[[], object]) -> None:
        self._deliver = deliver
        self._wake = wake
        self._line: deque[tuple[Pieces, Future[EngineModel]]] = deque()
        self._awaited: Future[Any] | None = None

    def __len__(self) -> int:
        """Loads that are not done. Any thread."""
        return len(self._line)

    def add(self, pieces: Pieces, result: "Future[EngineModel]") -> None:
        """Take up a load; nothing of it is done yet. From now on `result` cannot be cancelled: the load goes on."""
        if result.set_running_or_notify_cancel():
            self._line.append((pieces, result))

    def advance(self) -> bool:
        """Do one piece. False when there is none to do now."""
        if not self._line or (self._awaited is not None and not self._awaited.done()):
            return False
        pieces, result = self._line[0]
        self._awaited = None
        try:
            self._awaited = next(pieces)
        except StopIteration as end:
            self._line.popleft()
            model: EngineModel = end.value
            self._answer(partial(result.set_result, model))
        except Exception as error:
            self._line.popleft()
            bared = bare(error)
            self._answer(partial(result.set_exception, bared))
        if self._awaited is not None:
            self._awaited.add_done_callback(lambda _: self._wake())
        return True

    def end(self, error: DomainError) -> None:
        """Give up every load, so that nobody waits for a thread that is gone."""
        while self._line:
            pieces, result = self._line.popleft()
            try:
                pieces.close()
            finally:
                self._answer(partial(result.set_exception, error))

    def _answer(self, tell: Callable[[], None]) -> None:
        """Tell whoever still waits."""
        self._deliver()
        tell()


def whole(pieces: Generator[Future[Any] | None, None, T]) -> T:
    """A load done at once, waiting where it waits: for who has nothing to step meanwhile."""
    while True:
        try:
            awaited = next(pieces)
        except StopIteration as end:
            found: T = end.value
            return found
        if awaited is not None:
            awaited.exception()


__all__ = ("ModelLoads", "Pieces", "whole")
