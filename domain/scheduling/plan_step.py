"""The plan of one step: a pure function of the sequences, the memory budget and the durations of the last steps.

    preempt   as many bytes as the budget asks for: batch before interactive, then the youngest first. At least one
              sequence stays. One that was preempted `max_preemptions` times is spared while there are others
    admit     interactive before batch, preempted before new, then in order of arrival, as many as there is room for. A
              batch sequence that `patience` others have passed counts as interactive. A sequence that finds no room
              lets as many smaller ones pass; a preempted one lets none pass. None is admitted before its prefix was
              looked up, or while a running prefill of at least its priority computes more of the same prefix
    prefill   one turn of chunks
    decode    every sequence that decodes, once more also those that are preempted: their next token is mostly known

Chunks end at absolute multiples of `grid`, or of a part of it (see `domain/chunking`), so that restored and recomputed
states are bit-identical; at stops, where a snapshot is due; and at the end of the prompt. The chunk that ends the
prompt gives the first token. It is short, because logits cost all of its tokens: a longer one ends one token earlier,
and the last token is a chunk of its own. The rest of a prompt that was resumed off the grid is one chunk if it is
shorter than one (see `block_grid`). No chunk ends inside an image whose tokens attend to all of it: it ends before the
image, or behind one that it begins with, which may be longer than the grid. A prompt is not computed into an image that
is not prepared: others are. A pass over rows of a pooled request is a chunk.

    position   0         grid       2*grid  stop    3*grid  end
    chunks     |----------|----------|-------|-------|------|

Prompts take turns, one a step: the interactive one with the shortest rest first. Every `aging`-th turn belongs to the
prompt that has waited for most turns, with a quarter of the budget for shorter ones before it, so that no short prompt
waits for two long chunks, and no prompt for more than `aging` turns for each open prompt. Running streams have
`decode_share` of the time between turns. A turn is held for a few steps while a shorter prompt is being restored.
"""

from collections.abc import Sequence
from typing import TypeAlias

from domain.chunking import PLAIN, Chunking
from domain.ids import BlockHash, SequenceId
from domain.priority import Priority
from domain.scheduling.step_values import (
    UNBOUNDED,
    UNPACED,
    DecodingView,
    PrefillChunk,
    PrefillingView,
    RestoringView,
    SequenceView,
    StepBudget,
    StepLimits,
    StepPace,
    StepPlan,
    WaitingView,
)

Span: TypeAlias = tuple[int, int]

MAX_DECODES = 64
"""The most decode steps between two prefill turns, whatever was measured."""

SHORT_SHARE = 4
"""In the turn of the prompt that has waited longest, shorter ones share 1 / SHORT_SHARE of the budget."""


def plan_step(
    sequences: Sequence[SequenceView],
    limits: StepLimits,
    budget: StepBudget = UNBOUNDED,
    pace: StepPace = UNPACED,
) -> StepPlan:
    """Returns the plan of one step. Pure; `sequences` in order of arrival. An admitted sequence prefills in a later
    step, after its prefix was restored."""
    preempt = _plan_preemption(sequences, limits, budget)
    staying = [sequence for sequence in sequences if sequence.id not in preempt]
    admit, taken = _plan_admission(staying, limits, budget) if not preempt else ((), 0)
    is_held = budget.is_held or _holds_turn(staying, admit, limits, pace)
    prefill = _plan_prefill(staying, limits, pace) if not is_held else ()
    return StepPlan(
        admit=admit,
        prefill=prefill,
        decode=tuple(sequence.id for sequence in sequences if isinstance(sequence, DecodingView)),
        preempt=preempt,
        num_waited={**_count_waits(staying, admit, prefill), **dict.fromkeys(preempt, 0)},
        admitted_bytes=taken,
        is_held=is_held,
    )


def admission_order(sequences: Sequence[SequenceView], limits: StepLimits) -> list[WaitingView]:
    """Returns the waiting sequences that follow none, next to admit first."""
    waiting = [view for view in sequences if isinstance(view, WaitingView) and not is_following(view, sequences)]
    return sorted(waiting, key=lambda view: (_is_deferred(view, limits), not view.is_preempted))


def is_following(view: WaitingView, sequences: Sequence[SequenceView]) -> bool:
    """Returns whether a queued sequence waits for a running prefill of at least its priority. A sequence that waits for
    its grammar or for memory makes no progress, and one that left the batch does not run."""
    owner = next((one for one in sequences if one.id == view.follows), None) if view.follows is not None else None
    if not isinstance(owner, RestoringView | PrefillingView) or (isinstance(owner, RestoringView) and owner.is_held):
        return False
    return owner.priority is Priority.INTERACTIVE or view.priority is Priority.BATCH


def next_chunk_end(start: int, end: int, grid: int, stops: Sequence[int] = (), whole: Sequence[Span] = ()) -> int:
    """Returns the end of the chunk at `start`: the next grid line, stop or `end`, whichever comes first."""
    bound = min((start // grid + 1) * grid, end)
    return _beside(min((stop for stop in stops if start < stop < bound), default=bound), start, whole)


def next_prompt_chunk(
    start: int,
    num_prompt: int,
    limits: StepLimits,
    stops: Sequence[int] = (),
    whole: Sequence[Span] = (),
    chunking: Chunking = PLAIN,
) -> int:
    """Returns the end of the chunk at `start` of a prompt of `num_prompt` tokens, see the module docstring."""
    length = chunking.length_at(start, limits.grid)
    is_rest = start % length != 0 and num_prompt - start <= chunking.length_at(num_prompt - 1, limits.grid)
    end = next_chunk_end(start, num_prompt, num_prompt if is_rest else length, stops, whole)
    is_too_long = end == num_prompt and end - start > max(limits.max_last_chunk, 1)
    return _beside(end - 1, start, whole) if is_too_long else end


def _beside(end: int, start: int, whole: Sequence[Span]) -> int:
    """Returns the end of a chunk that begins at `start`, moved out of the image that it would cut."""
    first, last = next((span for span in whole if span[0] < end < span[1]), (end, end))
    return first if first > start else last


def _plan_preemption(
    sequences: Sequence[SequenceView], limits: StepLimits, budget: StepBudget
) -> tuple[SequenceId, ...]:
    left = budget.preempt_bytes
    active = [sequence for sequence in sequences if not isinstance(sequence, WaitingView)]
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
    """Returns the admitted sequences, and how many bytes of room they take."""
    if not budget.admits:
        return (), 0
    room, taken, admit, gone = budget.room_bytes, 0, list[SequenceId](), set(budget.evicted)
    num_active, begun = sum(not isinstance(sequence, WaitingView) for sequence in sequences), set[BlockHash]()
    for view in admission_order(sequences, limits):
        if num_active + len(admit) >= limits.max_batch:
            break
        if not view.is_looked_up or view.next_block in begun:
            continue
        state = view.takes_over.state if view.takes_over is not None else None
        wanted = view.charge_bytes if state in gone else view.wanted_bytes
        if room is not None and wanted > room:
            if view.is_preempted or view.num_waited >= limits.patience:
                break
            continue
        admit.append(view.id)
        if view.next_block is not None:
            begun.add(view.next_block)
        room, taken = None if room is None else room - wanted, taken + wanted
        if state is not None:
            gone.add(state)
    return tuple(admit), taken


def _plan_prefill(sequences: Sequence[SequenceView], limits: StepLimits, pace: StepPace) -> tuple[PrefillChunk, ...]:
    """Returns the next turn; empty while no prompt is open, or running streams still have to get their share."""
    prompts = [view for view in sequences if isinstance(view, PrefillingView) and not _is_blocked(view, limits)]
    if not prompts or (_owes_decoding(limits, pace) and any(isinstance(view, DecodingView) for view in sequences)):
        return ()
    by_rest = sorted(prompts, key=lambda view: (view.priority is Priority.BATCH, view.num_prompt - view.num_computed))
    longest = max(prompts, key=lambda view: view.num_waited)
    budget = limits.prefill_budget
    if pace.num_turns % limits.aging != limits.aging - 1 or longest is by_rest[0]:
        return _fill(by_rest, limits, budget) or _fill(by_rest[:1], limits, 0)
    chunks = _fill([view for view in by_rest if view is not longest], limits, budget // SHORT_SHARE)
    return chunks + _fill([longest], limits, 0)


def _fill(prompts: Sequence[PrefillingView], limits: StepLimits, budget: int) -> tuple[PrefillChunk, ...]:
    """Returns chunk after chunk, prompt by prompt, as long as they fit into `budget` tokens; one chunk if that is 0. A
    token of a prompt whose chunks are shorter than the grid takes the more of the budget."""
    chunks: list[PrefillChunk] = []
    left = budget
    for view in prompts:
        start = view.num_computed
        while start < view.num_prompt:
            end = _next_end(view, start, limits)
            if view.blocked_at is not None and end > view.blocked_at:
                break
            cost = (end - start) * limits.grid // view.chunking.length_at(start, limits.grid)
            if budget and cost > left:
                return tuple(chunks)
            chunks.append(PrefillChunk(view.id, start, end))
            if not budget:
                return tuple(chunks)
            left -= cost
            start = end
    return tuple(chunks)


def _next_end(view: PrefillingView, start: int, limits: StepLimits) -> int:
    if view.pass_tokens:
        return min(start + view.pass_tokens, view.num_prompt)
    return next_prompt_chunk(start, view.num_prompt, limits, view.stops, view.whole, view.chunking)


def _is_blocked(view: PrefillingView, limits: StepLimits) -> bool:
    """Returns whether the next chunk has to wait for an image."""
    return view.blocked_at is not None and _next_end(view, view.num_computed, limits) > view.blocked_at


def _holds_turn(
    sequences: Sequence[SequenceView], admitted: Sequence[SequenceId], limits: StepLimits, pace: StepPace
) -> bool:
    """Returns whether a prompt shorter than the rest of every open one is not restored yet."""
    rests = [view.num_prompt - view.num_computed for view in sequences if isinstance(view, PrefillingView)]
    return pace.num_held < limits.max_held and any(
        view.num_prompt < min(rests, default=0)
        for view in sequences
        if isinstance(view, RestoringView) or (isinstance(view, WaitingView) and view.id in admitted)
    )


def _owes_decoding(limits: StepLimits, pace: StepPace) -> bool:
    """Returns whether decoding has not had its share yet, including this step, since the last turn."""
    share, decode_s = limits.decode_share, pace.decode_s + pace.step_s
    return pace.num_decodes < MAX_DECODES and decode_s * (1 - share) < pace.turn_s * share


def _is_deferred(view: SequenceView, limits: StepLimits) -> bool:
    return view.priority is Priority.BATCH and view.num_waited < limits.patience


def _count_waits(
    sequences: Sequence[SequenceView], admit: Sequence[SequenceId], prefill: Sequence[PrefillChunk]
) -> dict[SequenceId, int]:
    """Returns the changes of `num_waited`."""
    served = {chunk.id for chunk in prefill}
    changes = dict.fromkeys([*admit, *served], 0)
    num_passed = 0
    for view in reversed(sequences):
        if isinstance(view, PrefillingView):
            if served and view.id not in served and view.blocked_at is None:
                changes[view.id] = view.num_waited + 1
        elif view.id in admit:
            num_passed += 1
        elif isinstance(view, WaitingView) and num_passed:
            changes[view.id] = view.num_waited + num_passed
    return changes
