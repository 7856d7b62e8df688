"""A StepGuard that admits nobody until it is opened: what waits, waits for memory."""

from collections.abc import Mapping, Sequence

from application.services.token_side.memory_guard import Unguarded
from domain.ids import SequenceId
from domain.memory.shape import MemoryShape
from domain.scheduling.plan_step import SequenceView, StepBudget


class ClosedGuard(Unguarded):
    """`is_open`: any thread."""

    is_open = False

    def budget(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        return StepBudget() if self.is_open else StepBudget(room_bytes=0, admits=False)
