"""A memory guard whose memory is what luck says: little room, pauses, and sequences that have to go.

Bytes are tokens. It never asks for more than can be: what is alone is preempted rarely, pauses end, and the room is
enough for any one sequence.
"""

from collections.abc import Mapping, Sequence
from random import Random

from domain.ids import SequenceId
from domain.memory.shape import MemoryShape
from domain.scheduling.step_values import SequenceView, StepBudget, StepLimits, WaitingView
from tests.support.engines.guards import UnboundedGuard

MAX_ALONE = 2


class ScriptedGuard(UnboundedGuard):
    """`num_preempting`: budgets that wanted bytes back. `is_pausing`: no sequence is admitted at present."""

    def __init__(self, random: Random, total_bytes: int, steps: StepLimits) -> None:
        super().__init__(steps)
        self._random = random
        self._total_bytes = total_bytes
        self._pause = 0
        self._num_alone = 0
        self.num_preempting = 0

    @property
    def is_pausing(self) -> bool:
        return self._pause > 0

    def charge_bytes(self, shape: MemoryShape, num_prompt: int, num_new: int) -> int:
        return min(num_prompt + num_new, self._total_bytes // 2)  # a pooled request has two charges

    def budget(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        assert shapes.keys() == {view.id for view in views}
        random = self._random
        active = [view for view in views if not isinstance(view, WaitingView)]
        self._pause = self._pause - 1 if self._pause else random.choice((0,) * 30 + (1, 20))
        return StepBudget(
            room_bytes=max(0, self._total_bytes - sum(view.charge_bytes for view in active)),
            admits=not self._pause,
            preempt_bytes=self._wanted(active),
        )

    def _wanted(self, active: Sequence[SequenceView]) -> int:
        if not active or self._random.random() > 0.03:
            return 0
        if len(active) == 1:
            self._num_alone += 1
            if self._num_alone > MAX_ALONE:
                return 0
        self.num_preempting += 1
        return self._random.choice((1, 300, 1_000))
