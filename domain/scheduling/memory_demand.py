"""The memory that open sequences hold, still grow by, and need for the next step, by their models' shapes.

held       the state up to the computed position, or the one to take over; a decoding row counts one growth step of its
           buffers ahead, because the rows of a batch grow together
growth     from there to the charge
a step     the shortest prompts prefill first, up to one chunk in all: their states grow, the cache copies what was
           computed, and the widest layer works on it; meanwhile every decoding sequence takes a step
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from domain.ids import SequenceId
from domain.memory.pressure import StepDemand
from domain.memory.shape import MemoryShape
from domain.scheduling.sequence import ACTIVE, Phase
from domain.scheduling.step_values import SequenceView
from domain.speculation.gain import MOST_ROWS

GROWN_TOKENS = 256
"""Tokens by which a decoding row's buffers grow at once."""

RESERVE_TOKENS, RESERVE_SHARE = 768, 8
"""Tokens that are reserved for an answer: so many, or one part in so many of its prompt. A sequence that grows further
may have to be preempted."""

Pair = tuple[SequenceView, MemoryShape]


@dataclass(frozen=True, slots=True)
class Open:
    """Bytes that all open sequences hold together, and bytes promised to them beyond that."""

    state_bytes: int
    growth_bytes: int


def charge_bytes(shape: MemoryShape, num_prompt: int, num_new: int, chunk: int) -> int:
    """Returns the charge of a sequence from its admission to its end: its prompt, and the reserved answer."""
    reserve = min(num_new, max(RESERVE_TOKENS, num_prompt // RESERVE_SHARE))
    return max(shape.state_bytes(num_prompt, min(chunk, num_prompt)), shape.state_bytes(num_prompt + reserve))


def open_bytes(views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape], chunk: int) -> Open:
    held = growth = 0
    for view in views:
        if view.phase in ACTIVE and (shape := shapes.get(view.id)) is not None:
            now = _held_bytes(view, shape, chunk)
            held += now
            growth += max(0, view.charge_bytes - now)
    return Open(held, growth)


def demand_of(
    views: Sequence[SequenceView],
    shapes: Mapping[SequenceId, MemoryShape],
    chunk: int,
    first: SequenceView | None,
) -> StepDemand:
    """Returns the demand of the next step. `chunk`: most tokens that it prefills. `first`: the next sequence to admit
    that has a shape; None: none waits."""
    known = [(view, shapes[view.id]) for view in views if view.id in shapes]
    # An image that no chunk may cut is a chunk, also where it is longer than others.
    chunk = max([chunk, *(last - start for view, _ in known for start, last in view.whole)])
    active = [(view, shape) for view, shape in known if view.phase in ACTIVE]
    prompts = [pair for pair in active if pair[0].phase is not Phase.DECODING]
    begun = [pair for pair in prompts if pair[0].phase is Phase.PREFILLING]
    rows = [pair for pair in active if pair[0].phase is Phase.DECODING]
    plain = _decode_bytes([(replace(view, width=1), shape) for view, shape in rows])
    return StepDemand(
        step_bytes=_decode_bytes(rows) + _prefill_bytes(prompts, chunk),
        begun_bytes=plain + _prefill_bytes(begun, chunk),
        waiting_bytes=0 if first is None else _waiting_bytes(first, shapes[first.id], active, prompts, chunk),
        waiting_has_bytes=0 if first is None or first.takes_over is None else first.takes_over.size_bytes,
        num_active=len(active),
        num_computing=sum(view.phase is not Phase.RESTORING for view, _ in active),
    )


def _waiting_bytes(
    view: SequenceView, shape: MemoryShape, active: Sequence[Pair], prompts: Sequence[Pair], chunk: int
) -> int:
    """Returns the charge of a waiting sequence, and the peak of its last chunk beyond that of the others' chunks."""
    length = min(chunk, view.num_prompt)
    pixels = shape.pixel_bytes(view.unseen.held)
    pass_bytes = pixels + shape.tower_bytes(view.unseen.largest, length)
    peak = _peak(view, shape, length, view.num_prompt) + pixels
    if not active:
        return max(view.charge_bytes, shape.state_bytes(view.num_prompt, length) + max(peak, pass_bytes))
    return view.charge_bytes + max(0, max(peak, pass_bytes) - _widest(prompts, length))


def _held_bytes(view: SequenceView, shape: MemoryShape, chunk: int) -> int:
    if view.phase is Phase.RESTORING:
        return view.takes_over.size_bytes if view.takes_over is not None else 0
    if view.phase is Phase.DECODING:
        ahead = shape.state_bytes(view.num_computed + GROWN_TOKENS)
        return max(min(ahead, view.charge_bytes), shape.state_bytes(view.num_computed + 1))
    return shape.state_bytes(view.num_computed, min(chunk, view.num_computed))


def _widest(prompts: Sequence[Pair], chunk: int) -> int:
    """Returns the peak of the widest chunk."""
    peaks = [0]
    for view, shape in prompts:
        length = min(chunk, view.num_prompt - view.num_computed)
        peaks.append(_peak(view, shape, length, view.num_computed + length))
    return max(peaks)


def _peak(view: SequenceView, shape: MemoryShape, chunk: int, end: int) -> int:
    peak = shape.peak_bytes(chunk, end, num_logits=chunk) if view.is_scored else shape.peak_bytes(chunk, end)
    return peak + shape.feature_bytes(view.unseen.largest, chunk)


def _prefill_bytes(prompts: Sequence[Pair], chunk: int) -> int:
    """Returns the bytes of one prefill turn: the widest chunk, and the growth of the states that it computes with what
    the cache copies of them; or a pass of the tower before the chunk."""
    growths, copies, passes, pixels = list[tuple[int, int]](), list[tuple[int, int]](), [0], 0
    for view, shape in prompts:
        start = view.num_computed
        length = max(0, min(chunk, view.num_prompt - start))
        end = start + length
        grown = max(0, shape.state_bytes(end, length) - shape.state_bytes(start, min(chunk, start)))
        copied = shape.state_bytes(end) - shape.state_bytes(start)
        if start and length:  # the first chunk's states have their fixed part in what they grow by
            copied += sum(state.fixed_bytes for state in shape.states)
        growths.append((length, grown))
        copies.append((length, grown + max(0, copied)))
        passes.append(shape.tower_bytes(view.unseen.largest, length))
        pixels += shape.pixel_bytes(view.unseen.held)
    chunks = _widest(prompts, chunk) + _of_one_turn(copies, chunk)
    return pixels + max(chunks, _of_one_turn(growths, chunk) + max(passes))


def _of_one_turn(sizes: Sequence[tuple[int, int]], chunk: int) -> int:
    """Returns the bytes of the prompts that share a turn, or of the largest one. `sizes`: tokens and bytes of each."""
    together, left = 0, chunk
    for length, size_bytes in sorted(sizes):  # the shortest first: more of them fit in
        if left <= 0:
            break
        together, left = together + size_bytes, left - length
    return max(together, max((size_bytes for _, size_bytes in sizes), default=0))


def _decode_bytes(rows: Sequence[Pair]) -> int:
    """Returns the bytes of one decode step; the rows of a model are as long as the longest of them, and compute as many
    tokens as the longest draft."""
    by_shape: dict[MemoryShape, list[SequenceView]] = {}
    for view, shape in rows:
        by_shape.setdefault(shape, []).append(view)
    return sum(_step_bytes(shape, views) for shape, views in by_shape.items())


def _step_bytes(shape: MemoryShape, views: Sequence[SequenceView]) -> int:
    width = max(view.width for view in views) if len(views) <= MOST_ROWS else 1
    return shape.decode_bytes(len(views), max(view.num_computed for view in views) + width, width)
