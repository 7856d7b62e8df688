"""Whether what a store has of a prompt is restored or computed: by how fast both were for this model. Pure.

Restoring takes about the same time for every token, computing longer the further into a prompt it stands. So where
restoring pays for one of a prompt's stored tokens it pays for those that follow, and of all places to stop at, the end
or the start is best: all is restored, or nothing.

Restoring is what a cache is for. Computing is chosen only when it is clearly faster by enough samples of both, and
every so often restoring is tried all the same, because a disk that was slow need not stay so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MIN_TOKENS = 1024
"""Fewer are restored in a moment, which tells of latency and not of rates; they are neither measured nor declined."""

MIN_SAMPLES = 3
CLEAR_RATIO = 1.5
PROBE_EVERY = 16
"""After so many prompts whose stored state was declined, one is restored."""

_KEPT = 0.75
"""What each sample leaves of the weight of those before it."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Time and tokens of `num_samples`, of which later and larger ones count more."""

    spent_ns: float = 0.0
    num_tokens: float = 0.0
    num_samples: int = 0

    @property
    def ns(self) -> float:
        """For a token."""
        return self.spent_ns / self.num_tokens

    def after(self, num_tokens: int, spent_ns: int) -> "Pace":
        return Pace(self.spent_ns * _KEPT + spent_ns, self.num_tokens * _KEPT + num_tokens, self.num_samples + 1)


@dataclass(frozen=True, slots=True)
class RestorePace:
    """One model's. `computing`: by the number of bits of the position at which a chunk ended, so that each entry is for
    twice as far as the one before. `num_declined`: in a row."""

    restoring: Pace = Pace()
    computing: Mapping[int, Pace] = field(default_factory=dict[int, Pace])
    num_declined: int = 0

    def restored(self, num_tokens: int, spent_ns: int) -> "RestorePace":
        """So many tokens came from a store, from the first read until they were state."""
        if num_tokens < MIN_TOKENS or spent_ns <= 0:
            return self
        return replace(self, restoring=self.restoring.after(num_tokens, spent_ns), num_declined=0)

    def computed(self, start: int, end: int, spent_ns: int) -> "RestorePace":
        """The chunk from `start` to `end` was computed."""
        if end <= start or spent_ns <= 0:
            return self
        sample = self.computing.get(end.bit_length(), Pace()).after(end - start, spent_ns)
        return replace(self, computing={**self.computing, end.bit_length(): sample})

    def declined(self) -> "RestorePace":
        """What `prefers_computing` advised was done."""
        return replace(self, num_declined=self.num_declined + 1)

    @property
    def is_known(self) -> bool:
        """Whether restoring was measured often enough to say anything."""
        return self.restoring.num_samples >= MIN_SAMPLES

    def prefers_computing(self, start: int, end: int, num_cold: int) -> bool:
        """Whether the tokens from `start` to `end` should be computed, and `num_cold` of them not read from a store."""
        if num_cold < MIN_TOKENS or not self.is_known or self.num_declined >= PROBE_EVERY:
            return False
        computing_ns = self.computing_ns(start, end)
        return computing_ns is not None and self.restoring.ns * num_cold > CLEAR_RATIO * computing_ns

    def computing_ns(self, start: int, end: int) -> float | None:
        """What computing these tokens takes; None when nobody has computed as far often enough. Where nobody did in
        between, it counts as what comes later, which is no less."""
        known = {bits: pace.ns for bits, pace in self.computing.items() if pace.num_samples >= MIN_SAMPLES}
        total_ns, at = 0.0, start
        while at < end:
            bits = (at + 1).bit_length()
            nearest = min((other for other in known if other >= bits), default=None)
            if nearest is None:
                return None
            stop = min(end, (1 << bits) - 1)
            total_ns, at = total_ns + known[nearest] * (stop - at), stop
        return total_ns


__all__ = ("CLEAR_RATIO", "MIN_SAMPLES", "MIN_TOKENS", "PROBE_EVERY", "Pace", "RestorePace")
