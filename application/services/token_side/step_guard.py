"""What bounds the steps of an engine: how much of memory a sequence is charged, and what is left for the next step.

Compute thread only, but for what it tells (`limits`, `ledger`, `pressure`); no blocking. A guard never raises for
what it cannot read: it bounds by what it knows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from domain.ids import ModelId, SequenceId
from domain.memory.ledger import MemoryLedger, MemoryLimits
from domain.memory.shape import MemoryShape
from domain.scheduling import SequenceView, StepBudget


class StepGuard(Protocol):
    """`limits`: what the process may hold; `ledger`: what it holds. None: nobody bounds it, or counts."""

    @property
    def limits(self) -> MemoryLimits | None: ...

    @property
    def ledger(self) -> MemoryLedger | None: ...

    @property
    def pressure(self) -> str:
        """The level of memory pressure by its name; empty where nobody looks."""
        ...

    def clear_with(self, clear: Callable[[], object]) -> None:
        """How the backend gives freed buffers back; before anything is loaded."""
        ...

    def begin_load(self, id: ModelId, num_bytes: int) -> str | None:
        """Make room for weights of about so many bytes and count them from now on; or why they cannot be loaded, and
        nothing is counted."""
        ...

    def loaded(self, id: ModelId, weight_bytes: int) -> None:
        """A model is in memory now."""
        ...

    def unloaded(self, id: ModelId) -> None:
        """And now it is not, or never came."""
        ...

    def charge_bytes(self, shape: MemoryShape, num_prompt: int, num_new: int) -> int:
        """What a sequence holds at its longest: asked for each when it comes, and whenever it was preempted, when its
        output so far is part of its prompt."""
        ...

    def budget(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        """Before each step. `views`: every sequence the planner sees, in order of arrival; of one that decodes,
        `num_computed` counts its output too. `shapes`: of the model of each whose model is loaded."""
        ...


class Unguarded:
    """A StepGuard that bounds nothing."""

    limits: MemoryLimits | None = None
    ledger: MemoryLedger | None = None
    pressure: str = ""

    def clear_with(self, clear: Callable[[], object]) -> None:
        pass

    def begin_load(self, id: ModelId, num_bytes: int) -> str | None:
        return None

    def loaded(self, id: ModelId, weight_bytes: int) -> None:
        pass

    def unloaded(self, id: ModelId) -> None:
        pass

    def charge_bytes(self, shape: MemoryShape, num_prompt: int, num_new: int) -> int:
        return 0

    def budget(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        return StepBudget()


__all__ = ("StepGuard", "Unguarded")
