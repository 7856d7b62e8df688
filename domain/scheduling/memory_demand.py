"""The memory that open sequences hold, still grow by, and need for the next step, by their models' shapes.

held       the state up to the computed position, or the one to take over; a decoding row counts one growth step of its
           buffers ahead, because the rows of a batch grow together
growth     from there to the charge
a step     a prefill turn (`needs.turn_bytes`), beside one decode step of all decoding sequences
waiting    the next sequence, as preflight counts it (`needs.needed`)
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from domain.ids import SequenceId
from domain.memory.needs import Chunk, Load, needed, turn_bytes
from domain.memory.pressure import StepDemand
from domain.memory.shape import MemoryShape
from domain.scheduling.step_values import (
    DecodingView,
    PrefillingView,
    PromptView,
    RestoringView,
    SequenceView,
    WaitingView,
)
from domain.speculation.gain import MOST_ROWS

GROWN_TOKENS = 256
"""Tokens by which a decoding row's buffers grow at once."""

RESERVE_TOKENS, RESERVE_SHARE = 768, 8
"""Tokens that are reserved for an answer, at least, and the divisor of its prompt, if that gives more. A sequence that
grows further may have to be preempted."""

Row: TypeAlias = tuple[DecodingView, MemoryShape]


def charge_bytes(shape: MemoryShape, num_prompt: int, num_new: int, chunk: int) -> int:
    """Returns the charge of a sequence from its admission to its end: its prompt, and the reserved answer."""
    # Most answers are much shorter than their limit. With all of it charged, a few requests would fill the memory by
    # promises; a reserve in proportion to the prompt costs a sequence that outgrows it little beside its prompt.
    reserve = min(num_new, max(RESERVE_TOKENS, num_prompt // RESERVE_SHARE))
    return needed(shape, Load(num_prompt, reserve, chunk)).kept


def demand_of(
    views: Sequence[SequenceView],
    shapes: Mapping[SequenceId, MemoryShape],
    chunk: int,
    first: WaitingView | None,
) -> StepDemand:
    """Returns what open sequences hold, and the demand of the next step. `chunk`: most tokens that it prefills.
    `first`: the next sequence to admit that has a shape; None: none waits."""
    known = [(view, shapes[view.id]) for view in views if view.id in shapes]
    # An image that no chunk may cut is a chunk, also where it is longer than others.
    wholes = [view.whole for view, _ in known if isinstance(view, PromptView)]
    chunk = max([chunk, *(last - start for whole in wholes for start, last in whole)])
    active = [(view, shape) for view, shape in known if not isinstance(view, WaitingView)]
    held = [_held_bytes(view, shape, chunk) for view, shape in active]
    rows = [(view, shape) for view, shape in active if isinstance(view, DecodingView)]
    prompts = [_next_chunk(view, shape, chunk) for view, shape in active if isinstance(view, PromptView)]
    # Neither a fetch nor a draft is a reason to preempt: the one can wait, and the other is left out.
    begun = [_next_chunk(view, shape, chunk) for view, shape in active if isinstance(view, PrefillingView)]
    plain = _decode_bytes([(replace(view, width=1), shape) for view, shape in rows])
    return StepDemand(
        state_bytes=sum(held),
        growth_bytes=sum(max(0, view.charge_bytes - now) for (view, _), now in zip(active, held, strict=True)),
        step_bytes=_decode_bytes(rows) + turn_bytes(prompts, chunk),
        begun_bytes=plain + turn_bytes(begun, chunk),
        waiting_bytes=0 if first is None else _waiting_bytes(first, shapes[first.id], prompts, chunk),
        waiting_has_bytes=0 if first is None or first.takes_over is None else first.takes_over.size_bytes,
        num_active=len(active),
        num_computing=sum(not isinstance(view, RestoringView) for view, _ in active),
    )


def _waiting_bytes(view: WaitingView, shape: MemoryShape, prompts: Sequence[Chunk], chunk: int) -> int:
    """Returns the memory that a waiting sequence needs beside the step of the others: its charge, or its prompt with
    the last chunk and the first decode step."""
    load = Load(view.num_prompt, chunk=chunk, is_scored=view.is_scored, images=view.unseen)
    # Prompts take turns, and the others' step holds a chunk of theirs already, whose memory is free in the turn of this
    # one. With no others this is preflight's sum for a shorter answer, so what preflight lets pass is admitted when
    # they end.
    counted = max((one.copy_bytes + one.peak_bytes for one in prompts), default=0)
    return max(view.charge_bytes, needed(shape, load).total - counted)


def _held_bytes(view: SequenceView, shape: MemoryShape, chunk: int) -> int:
    if isinstance(view, RestoringView):
        return view.takes_over.size_bytes if view.takes_over is not None else 0
    if isinstance(view, DecodingView):
        ahead = shape.state_bytes(view.num_computed + GROWN_TOKENS)
        return max(min(ahead, view.charge_bytes), shape.state_bytes(view.num_computed + 1))
    assert isinstance(view, PrefillingView)
    return _next_chunk(view, shape, chunk).held_bytes


def _next_chunk(view: PromptView, shape: MemoryShape, chunk: int) -> Chunk:
    start = view.num_computed if isinstance(view, PrefillingView) else 0
    length = max(0, min(chunk, view.num_prompt - start))
    return Chunk(shape, length, start + length, chunk, view.is_scored, view.unseen)


def _decode_bytes(rows: Sequence[Row]) -> int:
    """Returns the bytes of one decode step; the rows of a model are as long as the longest of them, and compute as many
    tokens as the longest draft."""
    by_shape: dict[MemoryShape, list[DecodingView]] = {}
    for view, shape in rows:
        by_shape.setdefault(shape, []).append(view)
    return sum(_step_bytes(shape, views) for shape, views in by_shape.items())


def _step_bytes(shape: MemoryShape, views: Sequence[DecodingView]) -> int:
    width = max(view.width for view in views) if len(views) <= MOST_ROWS else 1
    return shape.decode_bytes(len(views), max(view.num_computed for view in views) + width, width)
