"""What the engine does in one step, decided purely from what it holds: who is admitted, prefilled and decoded.

Rules. Every decoding sequence decodes in every step. Prefill is served in order of arrival and takes at most
`prefill_budget` tokens a step over all sequences, so that decode never waits longer than one budget. Prefill chunks
end at absolute multiples of `grid` (the canonical grid that makes restored and recomputed states bit-identical), at
requested stops (positions where a snapshot is due), and at the end of the prompt. The chunk that ends the prompt gives
the first token, and decoding begins in the next step. It is short, because logits cost all of its tokens: what is
longer ends one token earlier, and the last token is a chunk of its own. A prompt that was resumed off the grid has left
the canonical grid for good (see `block_grid`): cutting its rest at a grid line would not bring it back, so a rest
shorter than the grid is computed in one chunk.

    position   0         grid       2*grid  stop    3*grid  end
    chunks     |----------|----------|-------|-------|------|
"""

from collections.abc import Sequence
from dataclasses import dataclass

from domain.ids import SequenceId
from domain.priority import Priority
from domain.sequence import Phase


@dataclass(frozen=True, slots=True)
class StepLimits:
    """`max_batch`: sequences computed at once. Others in tokens; `max_last_chunk`: of the chunk that ends a prompt."""

    max_batch: int
    prefill_budget: int
    grid: int
    max_last_chunk: int = 32


@dataclass(frozen=True, slots=True)
class SequenceView:
    """The planner's view of one sequence; the engine lists them in order of arrival.

    `stops`: ascending positions at which prefill must pause. While prefilling, `num_computed < num_prompt`.
    `charge_bytes`: what it holds at its longest once it is admitted, and gives back when it is preempted; 0: unknown.
    """

    id: SequenceId
    phase: Phase
    num_computed: int
    num_prompt: int
    stops: tuple[int, ...] = ()
    charge_bytes: int = 0
    priority: Priority = Priority.INTERACTIVE


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What memory leaves for one step; the default bounds nothing.

    `room_bytes`: what may be admitted beyond what is active already; None: any number. `max_chunk`: tokens of a prefill
    chunk at most; None: a grid step. `admits` False: nobody is admitted. `preempt_bytes`: so much must be given back by
    preempting; 0: nobody is.
    """

    room_bytes: int | None = None
    max_chunk: int | None = None
    admits: bool = True
    preempt_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Compute prompt positions [start, end); never empty."""

    id: SequenceId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    admit: tuple[SequenceId, ...] = ()
    prefill: tuple[PrefillChunk, ...] = ()
    decode: tuple[SequenceId, ...] = ()
    preempt: tuple[SequenceId, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.admit or self.prefill or self.decode or self.preempt)


_ACTIVE = frozenset({Phase.RESTORING, Phase.PREFILLING, Phase.DECODING})


def next_chunk_end(start: int, end: int, grid: int, stops: Sequence[int] = ()) -> int:
    """End of the chunk that starts at `start`: the next grid line, stop or `end`, whichever comes first."""
    bound = min((start // grid + 1) * grid, end)
    return min((stop for stop in stops if start < stop < bound), default=bound)


def next_prompt_chunk(start: int, num_prompt: int, limits: StepLimits, stops: Sequence[int] = ()) -> int:
    """The same for a prompt of `num_prompt` tokens: its last chunk is short, and a short rest off the grid is one."""
    is_rest = start % limits.grid != 0 and num_prompt - start <= limits.grid
    end = next_chunk_end(start, num_prompt, num_prompt if is_rest else limits.grid, stops)
    is_too_long = end == num_prompt and end - start > max(limits.max_last_chunk, 1)
    return end - 1 if is_too_long else end


def plan_step(sequences: Sequence[SequenceView], limits: StepLimits, budget: StepBudget = StepBudget()) -> StepPlan:
    """Plan one step. Pure; `sequences` in order of arrival.

    Newly admitted sequences start to prefill in a later step, after their prefix was looked up.
    """
    room = budget.room_bytes
    num_active = sum(sequence.phase in _ACTIVE for sequence in sequences)
    admit: list[SequenceId] = []
    for sequence in sequences:
        if sequence.phase is not Phase.QUEUED:
            continue
        if not budget.admits or num_active + len(admit) >= limits.max_batch:
            break
        if room is not None and sequence.charge_bytes > room:
            break
        admit.append(sequence.id)
        room = None if room is None else room - sequence.charge_bytes
    prefill = _plan_prefill(sequences, limits)
    decode = tuple(sequence.id for sequence in sequences if sequence.phase is Phase.DECODING)
    return StepPlan(tuple(admit), prefill, decode)


def _plan_prefill(sequences: Sequence[SequenceView], limits: StepLimits) -> tuple[PrefillChunk, ...]:
    budget = limits.prefill_budget
    chunks: list[PrefillChunk] = []
    for sequence in sequences:
        if sequence.phase is not Phase.PREFILLING:
            continue
        start = sequence.num_computed
        while True:
            end = next_prompt_chunk(start, sequence.num_prompt, limits, sequence.stops)
            if end - start > budget and chunks:
                return tuple(chunks)
            chunks.append(PrefillChunk(sequence.id, start, end))
            budget -= end - start
            start = end
            if start >= sequence.num_prompt:
                break
            if budget <= 0:
                return tuple(chunks)
    return tuple(chunks)


__all__ = (
    "PrefillChunk",
    "Priority",
    "SequenceView",
    "StepBudget",
    "StepLimits",
    "StepPlan",
    "next_chunk_end",
    "next_prompt_chunk",
    "plan_step",
)
