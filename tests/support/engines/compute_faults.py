"""A compute engine that raises on request, before an operation or after it.

The port's contract allows some of these (a sequence's ComputeFailed) and forbids others (a `close` that raises);
callers of the port must survive both.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from application.ports.compute import ComputeEngine, LoadedModel, LoadReport, LoadSteps, unreported
from domain.models.model_card import LoadOptions, ModelSource

T = TypeVar("T")
Y = TypeVar("Y")

ENGINE_OPERATIONS = ("load", "unload", "memory", "clear_cache", "finish", "close_engine")
MODEL_OPERATIONS = (
    "description",
    "open",
    "set_media",
    "encode_image",
    "restore",
    "position",
    "prefill",
    "start_decode",
    "decode",
    "pool",
    "capture_blocks",
    "capture_snapshot",
    "close",
    "open_ids",
    "keep_live",
    "left_ids",
    "drop",
    "take_over",
)


@dataclass(slots=True)
class _Fault:
    error: BaseException
    times: int
    is_after: bool


class ComputeFaults:
    """The operations that fail. `strikes`: the number of failures of each."""

    def __init__(self, chance: Callable[[str], BaseException | None] | None = None) -> None:
        """`chance` is asked before every operation for an error to raise."""
        self._chance = chance
        self._armed: dict[str, _Fault] = {}
        self.strikes: dict[str, int] = {}

    def arm(self, operation: str, error: BaseException, times: int = 1, *, is_after: bool = False) -> None:
        """Makes the next `times` calls of `operation` raise `error`. `is_after`: once they have done their work."""
        if operation not in (*ENGINE_OPERATIONS, *MODEL_OPERATIONS):
            raise ValueError(f"no operation {operation!r}")
        self._armed[operation] = _Fault(error, times, is_after)

    def disarm(self) -> None:
        """Disarms all operations."""
        self._armed.clear()

    def around(self, operation: str, work: Callable[[], T]) -> T:
        """Runs the work, raises an armed error, or both."""
        afterwards = self._strike(operation)
        found = work()
        if afterwards is not None:
            raise self._counted(operation, afterwards)
        return found

    def around_pieces(self, operation: str, pieces: Generator[Y, None, T]) -> Generator[Y, None, T]:
        """The form of `around` for work that is done piece by piece."""
        afterwards = self._strike(operation)
        found = yield from pieces
        if afterwards is not None:
            raise self._counted(operation, afterwards)
        return found

    def _strike(self, operation: str) -> BaseException | None:
        """Raises the error now, or returns the error to raise after the work."""
        if self._chance is not None and (error := self._chance(operation)) is not None:
            raise self._counted(operation, error)
        fault = self._armed.get(operation)
        if fault is None or fault.times == 0:
            return None
        fault.times -= 1
        if fault.is_after:
            return fault.error
        raise self._counted(operation, fault.error)

    def _counted(self, operation: str, error: BaseException) -> BaseException:
        self.strikes[operation] = self.strikes.get(operation, 0) + 1
        return error


class _FaultyModel:
    """A LoadedModel around another."""

    def __init__(self, inner: LoadedModel, faults: ComputeFaults) -> None:
        self.inner = inner
        self._faults = faults

    def __getattr__(self, operation: str) -> Any:
        if operation not in MODEL_OPERATIONS:
            raise AttributeError(operation)
        if operation == "description":
            return self._faults.around(operation, lambda: getattr(self.inner, operation))
        work = getattr(self.inner, operation)

        def attempt(*given: Any, **named: Any) -> Any:
            return self._faults.around(operation, lambda: work(*given, **named))

        return attempt


def faulty_model(model: LoadedModel, faults: ComputeFaults) -> LoadedModel:
    """Returns a model around another; each of its operations may fail."""
    return cast(LoadedModel, _FaultyModel(model, faults))


class FaultyEngine:
    """A ComputeEngine around another, whose models fail too."""

    def __init__(self, engine: ComputeEngine, faults: ComputeFaults) -> None:
        self._engine = engine
        self._faults = faults

    def load(self, source: ModelSource, options: LoadOptions, report: LoadReport = unreported) -> LoadSteps:
        inner = yield from self._faults.around_pieces("load", self._engine.load(source, options, report))
        return faulty_model(inner, self._faults)

    def unload(self, model: LoadedModel) -> None:
        inner = model.inner if isinstance(model, _FaultyModel) else model
        self._faults.around("unload", lambda: self._engine.unload(inner))

    def memory(self) -> Mapping[str, int]:
        return self._faults.around("memory", self._engine.memory)

    def clear_cache(self) -> None:
        self._faults.around("clear_cache", self._engine.clear_cache)

    def finish(self) -> None:
        self._faults.around("finish", self._engine.finish)

    def close(self) -> None:
        self._faults.around("close_engine", self._engine.close)
