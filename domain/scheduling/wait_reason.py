"""The reason for which a request waits in the queue, derived from the plan that did not admit it.

MODEL    its model is not loaded yet (known on the text side, before it queues up)
PLACE    as many sequences are computed as may be at once
MEMORY   there are places, and what is computed now leaves too little memory
PREFIX   another request computes the beginning of the same prompt

A request whose prompt is being hashed waits for none of these: that takes milliseconds and needs no other request.
"""

from collections.abc import Collection, Sequence
from enum import Enum

from domain.ids import BlockHash, SequenceId
from domain.scheduling.plan_step import SequenceView, StepLimits, StepPlan, is_following
from domain.scheduling.sequence import ACTIVE, Phase


class WaitReason(Enum):
    MODEL = "model"
    PLACE = "place"
    MEMORY = "memory"
    PREFIX = "prefix"


def wait_reasons(sequences: Sequence[SequenceView], limits: StepLimits, plan: StepPlan) -> dict[SequenceId, WaitReason]:
    """The reasons of all sequences that this plan leaves in the queue. A preempted sequence has none, because its
    stream is open, unless nothing is computed whose end could let it resume."""
    num_active = sum(view.phase in ACTIVE for view in sequences)
    is_full = num_active + len(plan.admit) >= limits.max_batch
    reason = WaitReason.PLACE if is_full else WaitReason.MEMORY
    admitted = set(plan.admit)
    begun = {view.next_block for view in sequences if view.id in admitted and view.next_block is not None}
    waiting = (Phase.QUEUED,) if num_active or admitted else (Phase.QUEUED, Phase.PREEMPTED)
    return {
        view.id: WaitReason.PREFIX if _waits_for_prefix(view, sequences, begun) else reason
        for view in sequences
        if view.phase in waiting and view.id not in admitted and (view.is_looked_up or is_full)
    }


def _waits_for_prefix(view: SequenceView, sequences: Sequence[SequenceView], begun: Collection[BlockHash]) -> bool:
    """`begun`: the first blocks that the sequences admitted in this step will compute."""
    return view.next_block in begun or is_following(view, sequences)
