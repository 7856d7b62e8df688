"""What bounds the steps of an engine: how much of memory a sequence is charged, and what is left for the next step.

Compute thread only, no blocking. A guard never raises for what it cannot read: it bounds by what it knows.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from domain.ids import SequenceId
from domain.memory.shape import MemoryShape
from domain.scheduling import SequenceView, StepBudget


class StepGuard(Protocol):
    def charge_bytes(self, shape: MemoryShape, num_prompt: int, num_new: int) -> int:
        """What a sequence holds at its longest: asked once for each, when it queues up."""
        ...

    def budget(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        """Before each step. `views`: every sequence the planner sees, in order of arrival; of one that decodes,
        `num_computed` counts its output too. `shapes`: of the model of each whose model is loaded."""
        ...


class Unguarded:
    """A StepGuard that bounds nothing."""

    def charge_bytes(self, shape: MemoryShape, num_prompt: int, num_new: int) -> int:
        return 0

    def budget(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        return StepBudget()


__all__ = ("StepGuard", "Unguarded")
