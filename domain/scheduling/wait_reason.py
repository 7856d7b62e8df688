"""What keeps a request from being computed, told from the step that did not admit it.

MODEL    its model is not loaded yet (known on the text side, before it queues up)
PLACE    as many sequences are computed as may be at once
MEMORY   there are places, and what is computed now leaves too little memory
PREFIX   its prefix is looked up, or another request computes the beginning of the same prompt
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
    """Of everybody whom this plan leaves in the queue. Who was preempted is in nobody's queue, its stream is open; but
    when nothing is computed that could end, its waiting must."""
    num_active = sum(view.phase in ACTIVE for view in sequences)
    is_full = num_active + len(plan.admit) >= limits.max_batch
    reason = WaitReason.PLACE if is_full else WaitReason.MEMORY
    admitted = set(plan.admit)
    begun = {view.next_block for view in sequences if view.id in admitted and view.next_block is not None}
    waiting = (Phase.QUEUED,) if num_active or admitted else (Phase.QUEUED, Phase.PREEMPTED)
    return {
        view.id: WaitReason.PREFIX if _waits_for_prefix(view, sequences, begun) else reason
        for view in sequences
        if view.phase in waiting and view.id not in admitted
    }


def _waits_for_prefix(view: SequenceView, sequences: Sequence[SequenceView], begun: Collection[BlockHash]) -> bool:
    """`begun`: first blocks that those who are admitted now will compute."""
    return not view.is_looked_up or view.next_block in begun or is_following(view, sequences)
