"""A sequence that reuses nothing and keeps nothing: the model's layout is unsupported, or reuse is off."""

from collections.abc import Sequence

from application.ports.state_access import StateAccess
from domain.explanation import Explanation, StopReason


class UncachedSequence:
    """A SequenceCache."""

    stops: tuple[int, ...] = ()

    def __init__(self, num_prompt: int, reason: StopReason, note: str = "") -> None:
        self.explanation = Explanation(num_prompt, 0, 0, reason, note=note)

    def poll(self) -> bool:
        return True

    def restore(self, model: StateAccess) -> int:
        return 0

    def prefilled(self, model: StateAccess, position: int) -> None:
        pass

    def decoded(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        pass

    def end(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        pass

    def abandon(self) -> None:
        pass


__all__ = ("UncachedSequence",)
