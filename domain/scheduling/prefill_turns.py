"""Which prompt is prefilled next, and by how much: turns and chunks. Pure.

Chunks end at absolute multiples of `grid` (the canonical grid that makes restored and recomputed states bit-identical),
at requested stops (positions where a snapshot is due), and at the end of the prompt. The chunk that ends the prompt is
short, because logits cost all of its tokens: what is longer ends one token earlier, and the last token is a chunk of
its own. A prompt that was resumed off the grid has left the canonical grid for good (see `block_grid`): cutting its
rest at a grid line would not bring it back, so a rest shorter than the grid is computed in one chunk.

    position   0         grid       2*grid  stop    3*grid  end
    chunks     |----------|----------|-------|-------|------|

Between chunks prompts take turns, one a step: the interactive one with the shortest rest first. Every `aging`-th turn
is for the prompt that has waited for most turns; before its chunk only a quarter of the budget goes to shorter ones, so
that a question never waits for two long chunks. Whoever waits is passed by those only that have waited longer, each of
which has one turn: so nobody waits for more than `aging` turns for each prompt that is open.

Running streams have their share of the time between turns. And a turn is held, for a few steps at most whoever comes
and goes meanwhile, while a prompt shorter than whoever would have it is still restored.
"""

from collections.abc import Sequence

from domain.ids import SequenceId
from domain.priority import Priority
from domain.scheduling.sequence import Phase
from domain.scheduling.step_values import PrefillChunk, SequenceView, StepLimits, StepPace

MAX_DECODES = 64
"""Decode steps between two turns at most, whatever was measured."""

SHORT_SHARE = 4
"""In a turn of the prompt that has waited longest, others have this fraction of the budget."""


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


def plan_prefill(sequences: Sequence[SequenceView], limits: StepLimits, pace: StepPace) -> tuple[PrefillChunk, ...]:
    """The next turn; empty while no prompt is open, or running streams still have to have their share."""
    prompts = [sequence for sequence in sequences if sequence.phase is Phase.PREFILLING]
    if not prompts or (_owes_decoding(limits, pace) and any(view.phase is Phase.DECODING for view in sequences)):
        return ()
    by_rest = sorted(prompts, key=lambda view: (view.priority is Priority.BATCH, view.num_prompt - view.num_computed))
    longest = max(prompts, key=lambda view: view.num_waited)
    budget = limits.prefill_budget
    if pace.num_turns % limits.aging != limits.aging - 1 or longest is by_rest[0]:
        return _fill(by_rest, limits, budget) or _fill(by_rest[:1], limits, 0)
    chunks = _fill([view for view in by_rest if view is not longest], limits, budget // SHORT_SHARE)
    return chunks + _fill([longest], limits, 0)


def holds_turn(
    sequences: Sequence[SequenceView], admitted: Sequence[SequenceId], limits: StepLimits, pace: StepPace
) -> bool:
    """Whether the next turn is held for a prompt that is shorter than all that are open, and not restored yet."""
    rests = [view.num_prompt - view.num_computed for view in sequences if view.phase is Phase.PREFILLING]
    return pace.num_held < limits.max_held and any(
        view.num_prompt < min(rests, default=0)
        for view in sequences
        if view.id in admitted or view.phase is Phase.RESTORING
    )


def _owes_decoding(limits: StepLimits, pace: StepPace) -> bool:
    """Whether the step that comes before the next turn does not make up for the last one."""
    share, decode_s = limits.decode_share, pace.decode_s + pace.step_s
    return pace.num_decodes < MAX_DECODES and decode_s * (1 - share) < pace.turn_s * share


def _fill(prompts: Sequence[SequenceView], limits: StepLimits, budget: int) -> tuple[PrefillChunk, ...]:
    """Chunk by chunk, prompt by prompt, as long as they fit into `budget` tokens; with 0 just one chunk."""
    chunks: list[PrefillChunk] = []
    left = budget
    for view in prompts:
        start = view.num_computed
        while start < view.num_prompt:
            end = next_prompt_chunk(start, view.num_prompt, limits, view.stops)
            if budget and end - start > left:
                return tuple(chunks)
            chunks.append(PrefillChunk(view.id, start, end))
            if not budget:
                return tuple(chunks)
            left -= end - start
            start = end
    return tuple(chunks)
