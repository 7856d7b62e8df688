"""What prefill chunks really took, so that the estimate of the next ones is right.

MLX counts one peak for the whole process. It is begun anew before a chunk and read after it; what is active by then is
no part of the chunk's own: the weights, the states, and whatever workers brought to the device meanwhile. A chunk that
is still under way when its call returns cannot be measured, so where chunks are queued ahead only some are: the first
ones, then each after twice as many, and in the end one in a while.
"""

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx

from domain.memory.correction import PeakCorrection
from domain.memory.score_cost import ScoreCost
from domain.memory.shape import MemoryShape

FIRST_CHUNKS, EVERY_CHUNKS = 4, 64
_TOLD_CHANGE = 0.02
"""The smallest change of a factor that is worth telling."""

_highest_bytes = 0


def highest_bytes() -> int:
    """The most memory that was ever in use, however often the peak was begun anew. Any thread."""
    return max(_highest_bytes, mx.get_peak_memory())


class PeakMeter:
    """Of one loaded model. Compute thread only."""

    def __init__(
        self, shape: MemoryShape, correction: PeakCorrection, keep: Callable[[PeakCorrection], None], *, is_ahead: bool
    ) -> None:
        """`keep` is told a correction that has changed. `is_ahead`: chunks may be under way when their call returns."""
        self._shape, self._correction, self._keep, self._is_ahead = shape, correction, keep, is_ahead
        self._told = correction
        self._num_chunks = 0

    @property
    def shape(self) -> MemoryShape:
        """With what was learnt so far."""
        return self._correction.applied(self._shape)

    def most_ahead(self, position: int, chunk: int, num_logits: int) -> int | None:
        """What the `chunk` tokens behind `position`, and the logits of so many of them, are to keep alive at most
        beyond what is held; None: what they like. By the estimate as it was before anything was learnt, so that it
        never depends on what is measured of it."""
        end = position + chunk
        shape = _exactly(self._shape, chunk, end)
        held = shape.held_ahead_bytes(chunk, end)
        if not held:
            return None
        grown = max(0, shape.state_bytes(end, chunk) - shape.state_bytes(position))
        return held + grown + (shape.logit_bytes * num_logits + shape.sample_bytes if num_logits else 0)

    def begin(self, finish: Callable[[], None]) -> bool:
        """Before a chunk: whether it is measured. `finish` waits for every chunk."""
        global _highest_bytes
        self._num_chunks += 1
        if self._is_ahead and not _is_measured(self._num_chunks):
            return False
        finish()
        _highest_bytes = highest_bytes()
        mx.reset_peak_memory()
        return True

    def end(self, chunk: int, position: int, finish: Callable[[], None]) -> bool:
        """After a measured chunk of so many tokens up to `position`, its logits not among what was asked for. True
        when the shape is another one now."""
        finish()
        taken = mx.get_peak_memory() - mx.get_active_memory()
        shape, known = _exactly(self._shape, chunk, position), self._correction
        held = shape.held_ahead_bytes(chunk, position)
        needed = shape.chunk_bytes(chunk, position) - held if held else 0
        self._correction = now = known.learnt(shape.free_bytes(chunk, position), taken, held, needed)
        changes = now.factor - self._told.factor, now.held_factor - self._told.held_factor
        if max(map(abs, changes)) < _TOLD_CHANGE:
            return False
        self._told = now
        self._keep(now)
        return True


def _exactly(shape: MemoryShape, chunk: int, end: int) -> MemoryShape:
    """Without scores where this very chunk has none: else it would seem to take less than it was said to."""
    return shape if shape.scores.are_computed(chunk, end) else replace(shape, scores=ScoreCost())


def _is_measured(number: int) -> bool:
    """Of chunks counted from one, where those that are not wait for nothing."""
    is_power = not number & (number - 1)
    return number <= FIRST_CHUNKS or number % EVERY_CHUNKS == 0 or (is_power and number < EVERY_CHUNKS)


def uncorrected(shape: MemoryShape, *, is_ahead: bool = False) -> PeakMeter:
    """A meter that starts from nothing and is kept nowhere."""
    return PeakMeter(shape, PeakCorrection(), lambda _: None, is_ahead=is_ahead)


__all__ = ("EVERY_CHUNKS", "FIRST_CHUNKS", "PeakMeter", "highest_bytes", "uncorrected")
