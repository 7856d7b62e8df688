"""How far a model's measured peaks are from the estimated ones: two bounded factors a model.

    near    what a chunk needs wherever it is      by a chunk at the start of a prompt
    deep    what grows with the tokens before it   by one that lies up to DEEP_CHUNKS of its own length behind the start

A load measures one of each. Whatever is measured later counts at once where it is more, and by a sixteenth of the
difference where it is less: to the part that is larger, or `deep` for chunks far behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from domain.memory.shape import MemoryShape

LEAST_NEAR, MOST = 0.02, 8.0
MIN_BYTES = 1 << 20
"""Of a measurement that says anything: below, what others allocate at the same time is more."""
DEEP_CHUNKS = 8
_DESCENT = 16


@dataclass(frozen=True, slots=True)
class PeakCorrection:
    """`near` in LEAST_NEAR..MOST, `deep` in 0..MOST. `num_measured`: chunks so far; of none the factors are 1."""

    near: float = 1.0
    deep: float = 1.0
    num_measured: int = 0

    @classmethod
    def of_load(cls, shape: MemoryShape, chunk: int, peaks: Mapping[int, int]) -> "PeakCorrection":
        """From measured peaks by the end of their chunk: of a first one and, where there is one, of one far behind it.
        `shape`: without any correction."""
        step, (end, peak) = shape.step, max(peaks.items())
        if peaks[chunk] < MIN_BYTES:
            return cls()
        near_bytes, at_start = step.near_bytes(chunk), step.deep_bytes(chunk, chunk)
        if end == chunk:  # all of it may be what grows, and none
            near = _bounded(peak / max(near_bytes + at_start, 1), LEAST_NEAR)
            return cls(near, min(1.0, peak / max(at_start, 1)), 1)
        deep = _bounded((peak - peaks[chunk]) / max(step.deep_bytes(chunk, end) - at_start, 1), 0.0)
        return cls(_bounded((peaks[chunk] - deep * at_start) / max(near_bytes, 1), LEAST_NEAR), deep, 2)

    def learnt(self, shape: MemoryShape, chunk: int, end: int, measured_bytes: int) -> "PeakCorrection":
        """After one more chunk of so many tokens up to `end`. `shape`: without any correction."""
        near_bytes, deep_bytes = shape.step.near_bytes(chunk), shape.step.deep_bytes(chunk, end)
        if min(near_bytes, deep_bytes) <= 0 or max(near_bytes + deep_bytes, measured_bytes) < MIN_BYTES:
            return self
        now = replace(self, num_measured=self.num_measured + 1)
        if end <= 2 * chunk or (end <= DEEP_CHUNKS * chunk and self.near * near_bytes > self.deep * deep_bytes):
            wanted = (measured_bytes - self.deep * deep_bytes) / near_bytes
            return replace(now, near=_bounded(_moved(self.near, wanted), LEAST_NEAR))
        wanted = (measured_bytes - self.near * near_bytes) / deep_bytes
        return replace(now, deep=_bounded(_moved(self.deep, wanted), 0.0))

    def applied(self, shape: MemoryShape) -> MemoryShape:
        """The shape with a corrected step; weights and states are exact as they are."""
        step = replace(
            shape.step,
            base_bytes=round(shape.step.base_bytes * self.near),
            token_bytes=round(shape.step.token_bytes * self.near),
            seen_bytes=round(shape.step.seen_bytes * self.deep),
            pair_bytes=shape.step.pair_bytes * self.deep,
        )
        return replace(shape, step=step)


def _moved(factor: float, wanted: float) -> float:
    return wanted if wanted > factor else factor - (factor - wanted) / _DESCENT


def _bounded(factor: float, least: float) -> float:
    return min(max(factor, least), MOST)
