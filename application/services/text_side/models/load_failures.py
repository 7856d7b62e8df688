"""Recent failures of loading a model, remembered so that the next request for it neither unloads another model nor
ends another engine.

A failure applies to the same files, known by the folder and its newest change, and for REMEMBERED_S: the cause may have
been a lack of memory.
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
"""The number of engines lost in a row while they reload a served model, after which it is given up."""


@dataclass(frozen=True, slots=True)
class _Failure:
    files: tuple[str, str, int, int]
    message: str
    at_ns: int


class LoadFailures:
    """Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[ModelId, _Failure] = {}

    def note(self, source: ModelSource, message: str) -> None:
        self._failures.pop(source.id, None)
        self._failures[source.id] = _Failure(_files_of(source), message, self._clock.now_ns())
        if len(self._failures) > MAX_REMEMBERED:
            del self._failures[next(iter(self._failures))]

    def recall(self, source: ModelSource) -> str | None:
        """Returns why these files could not be loaded; None without a recent failure."""
        failure = self._failures.get(source.id)
        if failure is None:
            return None
        age_s = (self._clock.now_ns() - failure.at_ns) / 1e9
        if failure.files != _files_of(source) or age_s >= REMEMBERED_S:
            del self._failures[source.id]
            return None
        return (
            f"{failure.message} (found {age_s:.0f} s ago; it is tried again {REMEMBERED_S:.0f} s after that, or when"
            " its files change)"
        )

    def forget(self, id: ModelId) -> None:
        """Forgets the failure of a model that was loaded."""
        self._failures.pop(id, None)


def _files_of(source: ModelSource) -> tuple[str, str, int, int]:
    """The files by their places, newest change and size: a note or a use may be learnt while they are read."""
    return source.path, source.adapter, source.created_s, source.file_bytes


class BlamedLoads:
    """The loads and checks that an engine has under way: they are blamed for its loss. Event loop only."""

    def __init__(self, clock: Clock) -> None:
        self._failures = LoadFailures(clock)
        self._open: dict[object, tuple[ModelSource, int]] = {}
        self._num_losses: dict[ModelId, int] = {}
        self._blamed: dict[object, str] = {}

    def begin(self) -> None:
        """Starts anew for another engine, which loads nothing yet."""
        self._open.clear()

    async def watch(self, source: ModelSource, work: Callable[[], Awaitable[T]], max_losses: int = 1) -> T:
        """Runs `work`, which loads or checks a model. Raises ModelLoadFailed when it ends the engine `max_losses` times
        in a row, and where it did so recently."""
        if (reason := self._failures.recall(source)) is not None:
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
        """Notes that the engine was lost. Returns True if a load or check was under way."""
        for key, (source, max_losses) in self._open.items():
            self._num_losses[source.id] = self._num_losses.get(source.id, 0) + 1
            if self._num_losses[source.id] >= max_losses:
                del self._num_losses[source.id]
                self._blamed[key] = f"loading {source.id} ended the engine: {why}"
                self._failures.note(source, self._blamed[key])
        return bool(self._open)
