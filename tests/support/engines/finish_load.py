"""A load in one piece, for tests and benches that have nothing to step between its pieces."""

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def finish_load(pieces: Generator[Future[Any] | None, None, T]) -> T:
    """Runs a load to its end and returns its result; blocks while it waits for a worker."""
    while True:
        try:
            awaited = next(pieces)
        except StopIteration as end:
            found: T = end.value
            return found
        if awaited is not None:
            awaited.exception()
