"""How far a model's measured peaks are from the estimated ones: one bounded factor a model, learnt while it serves.

measured more than was said       the factor covers it at once
measured less, by a large step    it comes down by a sixteenth of the difference
measured less, by a small step    nothing: a small step leaves out what only a large one shows
a step too small to tell          nothing
"""

from dataclasses import dataclass, replace

from domain.memory.shape import MemoryShape

LEAST, MOST = 0.5, 4.0
MIN_BYTES = 1 << 20
"""Of a measurement that says anything: below, what others allocate at the same time is more."""
_LARGE_SHARE = 2
_DESCENT = 16
_FORGETTING = 64


@dataclass(frozen=True, slots=True)
class PeakCorrection:
    """`factor`: on what a step needs beyond states and logits, in LEAST..MOST. `largest_bytes`: the largest estimate
    that was measured lately; `num_measured`: how many were ever."""

    factor: float = 1.0
    largest_bytes: int = 0
    num_measured: int = 0

    def learnt(self, estimated_bytes: int, measured_bytes: int) -> "PeakCorrection":
        """After one more step. `estimated_bytes`: without any correction."""
        if estimated_bytes < MIN_BYTES:
            return self
        ratio = min(max(measured_bytes / estimated_bytes, LEAST), MOST)
        factor = self.factor
        if ratio > factor:
            factor = ratio
        elif estimated_bytes * _LARGE_SHARE >= self.largest_bytes:
            factor -= (factor - ratio) / _DESCENT
        largest = max(self.largest_bytes - self.largest_bytes // _FORGETTING, estimated_bytes)
        return replace(self, factor=factor, largest_bytes=largest, num_measured=self.num_measured + 1)

    def applied(self, shape: MemoryShape) -> MemoryShape:
        """The shape with corrected steps; weights and states are exact as they are."""
        step = shape.step
        return replace(
            shape,
            step=replace(
                step,
                base_bytes=self._of(step.base_bytes),
                token_bytes=self._of(step.token_bytes),
                seen_bytes=self._of(step.seen_bytes),
                pair_bytes=self._of(step.pair_bytes),
                most_bytes=self._of(step.most_bytes),
            ),
        )

    def _of(self, num_bytes: int) -> int:
        return round(num_bytes * self.factor)


__all__ = ("LEAST", "MIN_BYTES", "MOST", "PeakCorrection")
