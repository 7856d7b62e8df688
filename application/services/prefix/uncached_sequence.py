"""A sequence that reuses nothing and keeps nothing: the model's layout is unsupported, or reuse is off."""

from collections.abc import Sequence

from application.ports.compute import LoadedModel
from domain.explanation import Explanation, StopReason
from domain.ids import RequestId, SequenceId


class UncachedSequence:
    """A SequenceCache."""

    stops: tuple[int, ...] = ()

    def __init__(self, num_prompt: int, reason: StopReason, note: str = "", position: int = 0) -> None:
        self.explanation = Explanation(num_prompt, position, 0, reason, note=note)
        self._position = position

    def prepare(self) -> None:
        pass

    def poll(self) -> bool:
        return True

    def restore(self, model: LoadedModel) -> int:
        return 0

    def fork(self, id: SequenceId, request_id: RequestId) -> "UncachedSequence":
        told = self.explanation
        return UncachedSequence(told.num_prompt, told.reason, told.note, self._position)

    def prefilled(self, model: LoadedModel, position: int) -> None:
        self._position = position

    def decoded(self, model: LoadedModel, output_ids: Sequence[int]) -> None:
        pass

    def end(self, model: LoadedModel, output_ids: Sequence[int]) -> None:
        pass

    def abandon(self) -> None:
        pass


__all__ = ("UncachedSequence",)
