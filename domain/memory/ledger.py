"""What the computing process holds in the memory it computes in, and up to where it may.

    0 ......... low ....... high ....... hard ... total
      grow freely | let go of  | nothing new | kept for what no estimate knows

The ledger counts by purpose what is *held* now, and what was *promised*: room that open sequences still grow into and
what the next step takes for a moment. A reading tells what the process holds in fact; where it tells more than
the purposes and the margin beyond the hard mark add up to, the reading counts. Freed buffers that a library keeps to
use them again are not held.

Bytes everywhere; None is what could not be read, and nothing is guessed in its place.
"""

from dataclasses import dataclass, replace

LOW_SHARE, HIGH_SHARE, HARD_SHARE = 0.80, 0.88, 0.95


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """One memory, read now. `total_bytes`: what it offers this process at most; `available_bytes`: free or reclaimable
    of that, for anybody; `held_bytes`: what this process holds of it; `cached_bytes`: how much of that is freed buffers
    which clearing the backend's cache gives back."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    held_bytes: int | None = None
    cached_bytes: int = 0

    @property
    def used_bytes(self) -> int | None:
        """Held and not just kept for later."""
        return None if self.held_bytes is None else max(0, self.held_bytes - self.cached_bytes)


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """`total_bytes`: what the computing process may hold in all. Up to `low_bytes` it grows freely, above `high_bytes`
    it lets go of what it can, and nothing begins that would cross `hard_bytes`."""

    total_bytes: int
    low_bytes: int
    high_bytes: int
    hard_bytes: int

    @property
    def margin_bytes(self) -> int:
        """Beyond the hard mark: for what no estimate knows, such as how an allocator cuts its memory."""
        return self.total_bytes - self.hard_bytes

    @classmethod
    def of(cls, total_bytes: int) -> "MemoryLimits":
        """The marks of a process that may hold so much."""
        return cls(
            total_bytes, int(total_bytes * LOW_SHARE), int(total_bytes * HIGH_SHARE), int(total_bytes * HARD_SHARE)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes by purpose.

    Held: `weight_bytes` of loaded models; `state_bytes` of open sequences as far as they are computed; `hot_bytes` and
    `queued_bytes` of captured state in the hot tier and in front of the store (what lies in both counts in both: it is
    gone only when both let go of it, and the sum is never less than what is held);
    `live_bytes`: states that ended sequences left, to be taken over;
    `flight_bytes`: fetched from the store, or about to be, for sequences that are not restored yet, and the joined
    state of those that are; `other_bytes`: what the process held before it loaded anything.
    Promised: `growth_bytes`: what open sequences still grow by, up to the ends of their prompts and of their answers;
    `transient_bytes`: the most that the next step takes, what sequences grow by in it included, though that is promised
    too: never too little, by a chunk's state at most. `reading_bytes`: what was read to be used.
    """

    weight_bytes: int = 0
    state_bytes: int = 0
    hot_bytes: int = 0
    queued_bytes: int = 0
    flight_bytes: int = 0
    live_bytes: int = 0
    other_bytes: int = 0
    growth_bytes: int = 0
    transient_bytes: int = 0
    reading_bytes: int | None = None
    limits: MemoryLimits | None = None

    @property
    def fixed_bytes(self) -> int:
        """What stays when no request runs and everything kept for later is let go of."""
        return self.weight_bytes + self.other_bytes

    @property
    def held_bytes(self) -> int:
        """Held now: what is known by purpose; or what was read, where that is more than the margin beyond the hard mark
        is kept for."""
        known = self.fixed_bytes + self.state_bytes + self.hot_bytes + self.queued_bytes + self.flight_bytes
        known += self.live_bytes
        margin = self.limits.margin_bytes if self.limits is not None else 0
        return max(known, (self.reading_bytes or 0) - margin)

    def without_live(self) -> "MemoryUse":
        """As if no states were left: they give way to everything else."""
        reading = None if self.reading_bytes is None else max(0, self.reading_bytes - self.live_bytes)
        return replace(self, live_bytes=0, reading_bytes=reading)

    @property
    def used_bytes(self) -> int:
        """Held and promised."""
        return self.held_bytes + self.growth_bytes + self.transient_bytes

    @property
    def room_bytes(self) -> int | None:
        """What may still be begun below the hard mark; never negative. None: nothing bounds it."""
        return None if self.limits is None else max(0, self.limits.hard_bytes - self.used_bytes)
