"""A compute engine that raises on request, before an operation or after it.

The port's contract allows some of these (a sequence's ComputeFailed) and forbids others (a `close` that raises);
callers of the port must survive both.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from application.ports.compute import (
    NO_DRAFTS,
    ComputeEngine,
    DecodeResult,
    DecodeStart,
    Draft,
    LoadedModel,
    LoadSteps,
    PromptScores,
)
from application.ports.state_access import LeftState
from domain.ids import SequenceId
from domain.models.model_card import LoadOptions, ModelDescription, ModelSource
from domain.prefix.record import GroupPayloads
from domain.request.pooling import Pooling

T = TypeVar("T")
Y = TypeVar("Y")

ENGINE_OPERATIONS = ("load", "unload", "memory", "clear_cache", "close_engine")
MODEL_OPERATIONS = (
    "description",
    "open",
    "fork",
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
    "leave",
    "left_ids",
    "drop",
    "take_over",
)


@dataclass(slots=True)
class _Fault:
    error: Exception
    times: int
    is_after: bool


class ComputeFaults:
    """The operations that fail. `strikes`: the number of failures of each."""

    def __init__(self, chance: Callable[[str], Exception | None] | None = None) -> None:
        """`chance` is asked before every operation for an error to raise."""
        self._chance = chance
        self._armed: dict[str, _Fault] = {}
        self.strikes: dict[str, int] = {}

    def arm(self, operation: str, error: Exception, times: int = 1, *, is_after: bool = False) -> None:
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

    def _strike(self, operation: str) -> Exception | None:
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

    def _counted(self, operation: str, error: Exception) -> Exception:
        self.strikes[operation] = self.strikes.get(operation, 0) + 1
        return error


class FaultyModel:
    """A LoadedModel around another."""

    def __init__(self, model: LoadedModel, faults: ComputeFaults) -> None:
        self.inner = model
        self._faults = faults

    @property
    def description(self) -> ModelDescription:
        return self._faults.around("description", lambda: self.inner.description)

    def open(self, id: SequenceId) -> None:
        self._faults.around("open", lambda: self.inner.open(id))

    def fork(self, id: SequenceId, into: Sequence[SequenceId]) -> None:
        self._faults.around("fork", lambda: self.inner.fork(id, into))

    def restore(self, id: SequenceId, position: int, blocks: Sequence[GroupPayloads], snapshot: GroupPayloads) -> None:
        self._faults.around("restore", lambda: self.inner.restore(id, position, blocks, snapshot))

    def position(self, id: SequenceId) -> int:
        return self._faults.around("position", lambda: self.inner.position(id))

    def prefill(
        self, id: SequenceId, token_ids: Sequence[int], *, num_prompt_logprobs: int | None = None
    ) -> PromptScores:
        return self._faults.around(
            "prefill", lambda: self.inner.prefill(id, token_ids, num_prompt_logprobs=num_prompt_logprobs)
        )

    def start_decode(
        self, id: SequenceId, token_ids: Sequence[int], start: DecodeStart, *, num_prompt_logprobs: int | None = None
    ) -> PromptScores:
        return self._faults.around(
            "start_decode",
            lambda: self.inner.start_decode(id, token_ids, start, num_prompt_logprobs=num_prompt_logprobs),
        )

    def decode(
        self, ids: Sequence[SequenceId], drafts: Mapping[SequenceId, Draft] = NO_DRAFTS
    ) -> Sequence[DecodeResult]:
        return self._faults.around("decode", lambda: self.inner.decode(ids, drafts))

    def pool(self, id: SequenceId, rows: Sequence[Sequence[int]], pooling: Pooling) -> Sequence[bytes]:
        return self._faults.around("pool", lambda: self.inner.pool(id, rows, pooling))

    def capture_blocks(self, id: SequenceId, spans: Sequence[tuple[int, int]]) -> Sequence[GroupPayloads]:
        return self._faults.around("capture_blocks", lambda: self.inner.capture_blocks(id, spans))

    def capture_snapshot(self, id: SequenceId, block_start: int) -> GroupPayloads:
        return self._faults.around("capture_snapshot", lambda: self.inner.capture_snapshot(id, block_start))

    def close(self, ids: Sequence[SequenceId]) -> None:
        self._faults.around("close", lambda: self.inner.close(ids))

    def open_ids(self) -> frozenset[SequenceId]:
        return self._faults.around("open_ids", lambda: self.inner.open_ids())

    def leave(self, id: SequenceId, *, may_copy: bool = True) -> LeftState | None:
        return self._faults.around("leave", lambda: self.inner.leave(id, may_copy=may_copy))

    def left_ids(self) -> frozenset[SequenceId]:
        return self._faults.around("left_ids", lambda: self.inner.left_ids())

    def drop(self, ids: Sequence[SequenceId]) -> None:
        self._faults.around("drop", lambda: self.inner.drop(ids))

    def take_over(self, id: SequenceId, left: SequenceId, position: int) -> None:
        self._faults.around("take_over", lambda: self.inner.take_over(id, left, position))


class FaultyEngine:
    """A ComputeEngine around another, whose models are FaultyModels."""

    def __init__(self, engine: ComputeEngine, faults: ComputeFaults) -> None:
        self._engine = engine
        self._faults = faults

    def load(self, source: ModelSource, options: LoadOptions) -> LoadSteps:
        inner = yield from self._faults.around_pieces("load", self._engine.load(source, options))
        return FaultyModel(inner, self._faults)

    def unload(self, model: LoadedModel) -> None:
        inner = model.inner if isinstance(model, FaultyModel) else model
        self._faults.around("unload", lambda: self._engine.unload(inner))

    def memory(self) -> Mapping[str, int]:
        return self._faults.around("memory", self._engine.memory)

    def clear_cache(self) -> None:
        self._faults.around("clear_cache", self._engine.clear_cache)

    def close(self) -> None:
        self._faults.around("close_engine", self._engine.close)
