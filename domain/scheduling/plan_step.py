"""What the engine does in one step, decided purely from what it holds, what memory leaves, and what steps take.

    preempt   when memory says so: batch before interactive, then the youngest; never the last one while there are
              others, and who was preempted often enough only after all who were not
    decode    every sequence that decodes; once more also who is preempted, whose next token is mostly known already
    prefill   one turn (see `prefill_turns`)
    admit     interactive before batch, who was preempted before who was not, then in order of arrival; as many as there
              is room for. A batch sequence that `patience` others have passed counts as interactive. One that finds no
              room lets as many smaller ones pass, a preempted one none. Nobody is admitted before its prefix was looked
              up, nor while a running prefill of at least its priority computes more of the same prefix (see `follows`)

The chunk that ends a prompt gives the first token, and decoding begins in the next step.
"""

from collections.abc import Sequence

from domain.ids import BlockHash, SequenceId
from domain.priority import Priority
from domain.scheduling.prefill_turns import holds_turn, next_chunk_end, next_prompt_chunk, plan_prefill
from domain.scheduling.sequence import ACTIVE, WAITING, Phase
from domain.scheduling.step_values import (
    UNBOUNDED,
    UNPACED,
    PrefillChunk,
    SequenceView,
    StepBudget,
    StepLimits,
    StepPace,
    StepPlan,
)


def plan_step(
    sequences: Sequence[SequenceView],
    limits: StepLimits,
    budget: StepBudget = UNBOUNDED,
    pace: StepPace = UNPACED,
) -> StepPlan:
    """Plan one step. Pure; `sequences` in order of arrival.

    Newly admitted sequences start to prefill in a later step, after their prefix was looked up.
    """
    preempt = _plan_preemption(sequences, limits, budget)
    staying = [sequence for sequence in sequences if sequence.id not in preempt]
    admit, taken = _plan_admission(staying, limits, budget) if not preempt else ((), 0)
    is_held = holds_turn(staying, admit, limits, pace)
    prefill = plan_prefill(staying, limits, pace) if not is_held else ()
    return StepPlan(
        admit=admit,
        prefill=prefill,
        decode=tuple(sequence.id for sequence in sequences if sequence.phase is Phase.DECODING),
        preempt=preempt,
        num_waited={**_waited(staying, admit, prefill), **dict.fromkeys(preempt, 0)},
        admitted_bytes=taken,
        is_held=is_held,
    )


def _plan_preemption(
    sequences: Sequence[SequenceView], limits: StepLimits, budget: StepBudget
) -> tuple[SequenceId, ...]:
    left = budget.preempt_bytes
    active = [sequence for sequence in sequences if sequence.phase in ACTIVE]
    victims = sorted(
        reversed(active),
        key=lambda view: (view.num_preempted >= limits.max_preemptions, view.priority is Priority.INTERACTIVE),
    )
    preempt: list[SequenceId] = []
    for view in victims[: max(1, len(active) - 1)]:
        if left <= 0:
            break
        preempt.append(view.id)
        left -= view.charge_bytes
    return tuple(preempt)


def _plan_admission(
    sequences: Sequence[SequenceView], limits: StepLimits, budget: StepBudget
) -> tuple[tuple[SequenceId, ...], int]:
    """Who is admitted, and how many bytes of room they take."""
    if not budget.admits:
        return (), 0
    room, taken, admit, gone = budget.room_bytes, 0, list[SequenceId](), set(budget.let_go)
    places, begun = limits.max_batch - sum(sequence.phase in ACTIVE for sequence in sequences), set[BlockHash]()
    for view in admission_order(sequences, limits):
        if len(admit) >= places:
            break
        if not view.is_looked_up or view.next_block in begun:
            continue
        state = view.takes_over.state if view.takes_over is not None else None
        wanted = view.charge_bytes if state in gone else view.wanted_bytes
        if room is not None and wanted > room:
            if view.phase is Phase.PREEMPTED or view.num_waited >= limits.patience:
                break
            continue
        admit.append(view.id)
        if view.next_block is not None:
            begun.add(view.next_block)
        room, taken = None if room is None else room - wanted, taken + wanted
        if state is not None:
            gone.add(state)
    return tuple(admit), taken


def admission_order(sequences: Sequence[SequenceView], limits: StepLimits) -> list[SequenceView]:
    """Those that wait and follow nobody, who is admitted first first: where that one finds no room, nobody passes it
    for ever."""
    waiting = [
        sequence for sequence in sequences if sequence.phase in WAITING and not is_following(sequence, sequences)
    ]
    return sorted(waiting, key=lambda view: (_is_deferred(view, limits), view.phase is not Phase.PREEMPTED))


def is_following(view: SequenceView, sequences: Sequence[SequenceView]) -> bool:
    """Whether one in the queue waits for a running prefill of at least its priority. One that waits for its grammar or
    for memory does not get on, and one that left the batch does not run."""
    owner = next((one for one in sequences if one.id == view.follows), None) if view.follows is not None else None
    if owner is None or owner.phase not in (Phase.RESTORING, Phase.PREFILLING) or owner.is_held:
        return False
    return owner.priority is Priority.INTERACTIVE or view.priority is Priority.BATCH


def _is_deferred(view: SequenceView, limits: StepLimits) -> bool:
    return view.priority is Priority.BATCH and view.num_waited < limits.patience


def _waited(
    sequences: Sequence[SequenceView],
    admit: Sequence[SequenceId],
    prefill: Sequence[PrefillChunk],
) -> dict[SequenceId, int]:
    """What changes of `num_waited`."""
    served = {chunk.id for chunk in prefill}
    changes = dict.fromkeys([*admit, *served], 0)
    num_passed = 0
    for view in reversed(sequences):
        if view.phase is Phase.PREFILLING and served and view.id not in served:
            changes[view.id] = view.num_waited + 1
        elif view.id in admit:
            num_passed += 1
        elif view.phase in WAITING and num_passed:
            changes[view.id] = view.num_waited + num_passed
    return changes


__all__ = (
    "PrefillChunk",
    "Priority",
    "SequenceView",
    "StepBudget",
    "StepLimits",
    "StepPace",
    "StepPlan",
    "admission_order",
    "is_following",
    "next_chunk_end",
    "next_prompt_chunk",
    "plan_step",
)
