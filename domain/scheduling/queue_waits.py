"""The reason for which a request waits in the queue, derived from the plan that did not admit it.

MODEL    its model is not loaded yet (known on the text side, before it queues up)
PLACE    as many sequences are computed as may be at once
MEMORY   there are places, and what is computed now leaves too little memory
PREFIX   another request computes or reads the beginning of the same prompt

A request whose prompt is being hashed waits for none of these: that takes milliseconds and needs no other request.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from domain.errors import MemoryBusy
from domain.ids import BlockHash, SequenceId
from domain.scheduling.plan_step import is_following
from domain.scheduling.step_values import SequenceView, StepLimits, StepPlan, WaitingView


class WaitReason(Enum):
    MODEL = "model"
    PLACE = "place"
    MEMORY = "memory"
    PREFIX = "prefix"


MEMORY_WAIT_S = 120.0
"""The longest time a request waits in the queue for memory that others hold."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Changes by one step: new wait reasons, and the sequences that have waited too long for memory."""

    changed: Mapping[SequenceId, WaitReason]
    overdue: tuple[SequenceId, ...]


class QueueWaits:
    """The reasons for which queued sequences wait, and for how long. Waiting for a place ends when a running sequence
    ends. A stream may hold memory until it ends, so the wait for memory is bounded; waiting for a place in between
    counts too.

    `counts`: number of sequences by the value of their reason, without zeros. Any thread."""

    def __init__(self, memory_wait_s: float = MEMORY_WAIT_S) -> None:
        self._memory_wait_s = memory_wait_s
        self._reasons: dict[SequenceId, WaitReason] = {}
        self._since_ns: dict[SequenceId, int] = {}
        self.counts: Mapping[str, int] = {}

    def update(self, sequences: Sequence[SequenceView], limits: StepLimits, plan: StepPlan, now_ns: int) -> Waits:
        """Returns what the step with this plan changes. `sequences`: as the planner saw them."""
        before, self._reasons = self._reasons, wait_reasons(sequences, limits, plan)
        self.counts = Counter(reason.value for reason in self._reasons.values())
        self._since_ns = {
            id: self._since_ns.get(id, now_ns)
            for id, reason in self._reasons.items()
            if reason is WaitReason.MEMORY or (id in self._since_ns and reason is WaitReason.PLACE)
        }
        earliest_ns = now_ns - self._memory_wait_s * 1e9
        overdue = [id for id, since_ns in self._since_ns.items() if since_ns <= earliest_ns]
        return Waits(
            {id: reason for id, reason in self._reasons.items() if before.get(id) is not reason},
            tuple(id for id in overdue if self._reasons[id] is WaitReason.MEMORY),
        )

    def error(self) -> MemoryBusy:
        """Returns the error of an overdue sequence."""
        return MemoryBusy(
            f"the running requests left no memory for this one within {self._memory_wait_s:g} s; try again later, with"
            " a shorter prompt or with fewer requests at once"
        )


def wait_reasons(sequences: Sequence[SequenceView], limits: StepLimits, plan: StepPlan) -> dict[SequenceId, WaitReason]:
    """The reasons of all sequences that this plan leaves in the queue. A preempted sequence has none, because its
    stream is open, unless nothing is computed whose end could let it resume."""
    waiting = [view for view in sequences if isinstance(view, WaitingView)]
    num_active = len(sequences) - len(waiting)
    is_full = num_active + len(plan.admit) >= limits.max_batch
    reason = WaitReason.PLACE if is_full else WaitReason.MEMORY
    admitted = set(plan.admit)
    begun = {view.next_block for view in waiting if view.id in admitted and view.next_block is not None}
    is_computing = num_active or admitted
    return {
        view.id: WaitReason.PREFIX if _waits_for_prefix(view, sequences, begun) else reason
        for view in waiting
        if view.id not in admitted and (view.is_looked_up or is_full) and not (view.is_preempted and is_computing)
    }


def _waits_for_prefix(view: WaitingView, sequences: Sequence[SequenceView], begun: Collection[BlockHash]) -> bool:
    """Returns whether it follows another sequence. `begun`: the first blocks that the sequences admitted in this step
    will compute."""
    return view.next_block in begun or is_following(view, sequences)
