"""The progress of a model's load: its phase, how much of that is done, and the seconds left by the rate so far."""

from dataclasses import dataclass, replace
from enum import StrEnum

from domain.ids import ModelId

LEAST_RATED_NS = 1_000_000_000
"""A phase that is younger has no rate yet."""


class LoadPhase(StrEnum):
    """HASHING: files are read for their digest. READING: weights are read into memory. MEASURING: toy passes and whole
    chunks are computed. LOADING: anything else."""

    LOADING = "loading"
    HASHING = "hashing"
    READING = "reading"
    MEASURING = "measuring"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The progress of a load. `done`, `total`: of the phase, in bytes, in chunks for MEASURING; `total` 0 while it is
    unknown. `begun_ns`: when nothing of it was done; `at_ns`: when it was reported."""

    id: ModelId
    phase: LoadPhase = LoadPhase.LOADING
    done: int = 0
    total: int = 0
    begun_ns: int = 0
    at_ns: int = 0

    def reached(self, phase: LoadPhase, done: int, total: int, now_ns: int) -> "LoadProgress":
        """Returns the progress after a report; another phase or total begins anew."""
        is_same = (phase, total) == (self.phase, self.total)
        begun_ns = self.begun_ns if is_same else now_ns
        return replace(self, phase=phase, done=done, total=total, begun_ns=begun_ns, at_ns=now_ns)

    @property
    def fraction(self) -> float | None:
        """The share of the phase that is done, 0 to 1; None while its amount is unknown."""
        return min(1.0, self.done / self.total) if self.total > 0 else None

    def seconds_left(self, now_ns: int) -> float | None:
        """Returns the seconds until the end of the phase, by its rate so far; None while the rate is unknown."""
        took_ns = self.at_ns - self.begun_ns
        if not self.total or self.done <= 0 or took_ns < LEAST_RATED_NS:
            return None
        left_ns = took_ns * (self.total - self.done) / self.done
        return max(0.0, left_ns - (now_ns - self.at_ns)) / 1e9
