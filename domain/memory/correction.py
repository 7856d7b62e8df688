"""How far a model's measured peaks are from the estimated ones: one bounded factor a model, learnt while it serves.

measured more than was said       the factor covers it at once
measured less, by a large step    it comes down by a sixteenth of the difference
measured less, by a small step    nothing: a small step leaves out what only a large one shows
a step too small to tell          nothing

What a step is held to (`AheadBound`) is no estimate, and never scaled. A step that is held to it has a factor of its
own, on what it needs beside the bound, and never less than was said: that is so little that it says nothing of others.
Of the other factor it says only that it is not less than what was measured.
"""

from dataclasses import dataclass, replace

from domain.memory.shape import MemoryShape, StepCost

LEAST, MOST = 0.5, 4.0
MOST_HELD = 64.0
"""As MOST, on what a step needs beside what it is held to: should it not be held to it after all, this is what covers
it. The whole is at most MOST times as large."""
MIN_BYTES = 1 << 20
"""Of a measurement that says anything: below, what others allocate at the same time is more."""
_LARGE_SHARE = 2
_DESCENT = 16
_FORGETTING = 64


@dataclass(frozen=True, slots=True)
class PeakCorrection:
    """`factor`: on what a step needs beyond states and logits, in LEAST..MOST. `largest_bytes`: the largest estimate
    that was measured lately; `num_measured`: how many were ever. `held_factor`: on what a held step needs beside the
    bound, in 1..MOST_HELD."""

    factor: float = 1.0
    largest_bytes: int = 0
    num_measured: int = 0
    held_factor: float = 1.0

    def learnt(
        self, estimated_bytes: int, measured_bytes: int, held_bytes: int = 0, needed_bytes: int = 0
    ) -> "PeakCorrection":
        """After one more step. `estimated_bytes`: without any correction or bound. `held_bytes`: the bound that it was
        held to, and `needed_bytes` what was estimated beside that; 0 for a step that nothing held."""
        told_bytes = held_bytes + needed_bytes or estimated_bytes
        if told_bytes < MIN_BYTES:
            return self
        is_large = told_bytes * _LARGE_SHARE >= self.largest_bytes
        largest = max(self.largest_bytes - self.largest_bytes // _FORGETTING, told_bytes)
        learnt = replace(self, largest_bytes=largest, num_measured=self.num_measured + 1)
        measured = min(measured_bytes, MOST * told_bytes)
        ratio = max(measured / estimated_bytes, LEAST)
        if not held_bytes:
            return replace(learnt, factor=_moved(self.factor, ratio, is_large=is_large))
        beside = min(max((measured - held_bytes) / max(needed_bytes, 1), 1.0), MOST_HELD)
        return replace(
            learnt,
            factor=max(self.factor, ratio),
            held_factor=_moved(self.held_factor, beside, is_large=is_large),
        )

    def applied(self, shape: MemoryShape) -> MemoryShape:
        """The shape with corrected steps; weights, states and bounds are exact as they are."""
        ahead = shape.ahead
        return replace(
            shape,
            step=_scaled(shape.step, self.factor),
            ahead=None if ahead is None else replace(ahead, needed=_scaled(ahead.needed, self.held_factor)),
        )


def _moved(factor: float, ratio: float, *, is_large: bool) -> float:
    if ratio > factor:
        return ratio
    return factor - (factor - ratio) / _DESCENT if is_large else factor


def _scaled(step: StepCost, factor: float) -> StepCost:
    return replace(
        step,
        base_bytes=round(step.base_bytes * factor),
        token_bytes=round(step.token_bytes * factor),
        seen_bytes=round(step.seen_bytes * factor),
        pair_bytes=round(step.pair_bytes * factor),
        most_bytes=round(step.most_bytes * factor),
    )


__all__ = ("LEAST", "MIN_BYTES", "MOST", "MOST_HELD", "PeakCorrection")
