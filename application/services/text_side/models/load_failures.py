"""Models that could not be loaded a short while ago: answered from memory, so that naming one evicts nothing again.

A failure counts for the very files that failed, as told by the folder and its newest change, and for REMEMBERED_S:
what was missing may have been memory.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from application.ports.clock import Clock
from domain.errors import ModelLoadFailed, ServerUnavailable
from domain.ids import ModelId
from domain.models.model_card import ModelSource

T = TypeVar("T")

REMEMBERED_S = 300.0
MAX_REMEMBERED = 256

MAX_RELOADS = 2
"""Engines that may be lost while they load a model that was served before."""


@dataclass(frozen=True, slots=True)
class _Failure:
    source: ModelSource
    message: str
    at_s: float


class LoadFailures:
    """Times in seconds of one monotonic clock. Not thread-safe."""

    def __init__(self) -> None:
        self._failures: dict[ModelId, _Failure] = {}

    def note(self, source: ModelSource, message: str, now_s: float) -> None:
        self._failures.pop(source.id, None)
        self._failures[source.id] = _Failure(source, message, now_s)
        if len(self._failures) > MAX_REMEMBERED:
            del self._failures[next(iter(self._failures))]

    def recall(self, source: ModelSource, now_s: float) -> str | None:
        """Why these files could not be loaded; None when that is not known, or no longer."""
        failure = self._failures.get(source.id)
        if failure is None:
            return None
        age_s = now_s - failure.at_s
        if failure.source != source or age_s >= REMEMBERED_S:
            del self._failures[source.id]
            return None
        return (
            f"{failure.message} (found {age_s:.0f} s ago; it is tried again {REMEMBERED_S:.0f} s after that, or when"
            " its files change)"
        )

    def forget(self, id: ModelId) -> None:
        """It was loaded after all."""
        self._failures.pop(id, None)


class BlamedLoads:
    """The loads that an engine has under way: they are the cause of its loss. Event loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = LoadFailures()
        self._open: dict[object, tuple[ModelSource, int]] = {}
        self._num_losses: dict[ModelId, int] = {}
        self._blamed: dict[object, str] = {}

    def begin(self) -> None:
        """Another engine, which loads nothing yet."""
        self._open.clear()

    async def watch(self, source: ModelSource, work: Callable[[], Awaitable[T]], max_losses: int = 1) -> T:
        """Do what loads a model, or looks at it. Raises ModelLoadFailed where that ends engines so often in a row, or
        did so before."""
        if (reason := self._failures.recall(source, self._clock.now_ns() / 1e9)) is not None:
            raise ModelLoadFailed(reason, param="model")
        key = object()
        self._open[key] = source, max_losses
        try:
            done = await work()
            self._num_losses.pop(source.id, None)
            return done
        except ServerUnavailable:
            if key in self._blamed:
                raise ModelLoadFailed(self._blamed[key], param="model") from None
            raise
        finally:
            self._open.pop(key, None)
            self._blamed.pop(key, None)

    def blame(self, why: str) -> bool:
        """The engine was lost. Returns whether there was anything to blame for it."""
        for key, (source, max_losses) in self._open.items():
            self._num_losses[source.id] = self._num_losses.get(source.id, 0) + 1
            if self._num_losses[source.id] >= max_losses:
                del self._num_losses[source.id]
                self._blamed[key] = f"loading {source.id} ended the engine: {why}"
                self._failures.note(source, self._blamed[key], self._clock.now_ns() / 1e9)
        return bool(self._open)
