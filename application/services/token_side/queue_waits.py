"""What each sequence in the queue waits for, and who has waited too long for memory. Compute thread, but for `counts`.

Waiting for a place ends by itself: those that are computed come to an end. Memory may be held for as long as a stream
goes on, so that this waiting has an end of its own, an error that tells the client when to come back. Time spent
waiting for a place in between counts too: it is the same client that waits.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from domain.errors import MemoryBusy
from domain.ids import SequenceId
from domain.scheduling import SequenceView, StepLimits, StepPlan
from domain.wait_reason import WaitReason, wait_reasons

MEMORY_WAIT_S = 120.0
"""How long a request may wait in the queue for memory that others hold."""


@dataclass(frozen=True, slots=True)
class Waits:
    """What a step changed: who waits for something else than before, and who has waited too long."""

    changed: Mapping[SequenceId, WaitReason]
    overdue: tuple[SequenceId, ...]


class QueueWaits:
    def __init__(self, memory_wait_s: float = MEMORY_WAIT_S) -> None:
        self._memory_wait_s = memory_wait_s
        self._reasons: dict[SequenceId, WaitReason] = {}
        self._since_ns: dict[SequenceId, int] = {}
        self.counts: Mapping[str, int] = {}
        """By the value of the reason; none that is 0. Any thread."""

    def look(self, sequences: Sequence[SequenceView], limits: StepLimits, plan: StepPlan, now_ns: int) -> Waits:
        """After each step was planned. `sequences`: as the planner saw them."""
        before, self._reasons = self._reasons, wait_reasons(sequences, limits, plan)
        self.counts = Counter(reason.value for reason in self._reasons.values())
        self._since_ns = {
            id: self._since_ns.get(id, now_ns)
            for id, reason in self._reasons.items()
            if id in self._since_ns or reason is WaitReason.MEMORY
        }
        most_ns = self._memory_wait_s * 1e9
        return Waits(
            {id: reason for id, reason in self._reasons.items() if before.get(id) is not reason},
            tuple(
                id
                for id, since_ns in self._since_ns.items()
                if self._reasons[id] is WaitReason.MEMORY and now_ns - since_ns >= most_ns
            ),
        )

    def error(self) -> MemoryBusy:
        """For who is overdue."""
        return MemoryBusy(
            f"what is being computed left no room in memory for {self._memory_wait_s:g} s; try again later, with a"
            " shorter prompt or fewer requests at once"
        )


__all__ = ("QueueWaits", "Waits")
