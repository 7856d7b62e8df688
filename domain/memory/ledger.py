"""The memory that the computing process holds, by purpose, and the marks that bound it.

    0 ......... low ....... high ....... hard ... total
      grow freely |   evict    | nothing new | margin for what no estimate covers

The ledger counts by purpose the memory that is *held* now and the memory that was *promised*: the growth of open
sequences, and the transient of the next step. A reading says what the process holds in fact; where it is larger than
the purposes and the margin beyond the hard mark together, the reading counts. Freed buffers that a library keeps for
reuse are not held.

All values are bytes; None means that a value could not be read, and is never replaced by a guess.
"""

from dataclasses import dataclass, replace

LOW_SHARE, HIGH_SHARE, HARD_SHARE = 0.80, 0.88, 0.95


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """One reading of a memory. `total_bytes`: the most it offers this process. `available_bytes`: free or reclaimable
    memory, for any process. `held_bytes`: held by this process. `cached_bytes`: the part of that in freed buffers,
    which clearing the backend's cache gives back."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    held_bytes: int | None = None
    cached_bytes: int = 0

    @property
    def used_bytes(self) -> int | None:
        """The held bytes without freed buffers."""
        return None if self.held_bytes is None else max(0, self.held_bytes - self.cached_bytes)


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """The marks of a process that may hold `total_bytes`. It grows freely up to `low_bytes`, evicts above `high_bytes`,
    and begins nothing that would cross `hard_bytes`."""

    total_bytes: int
    low_bytes: int
    high_bytes: int
    hard_bytes: int

    @property
    def margin_bytes(self) -> int:
        """The memory beyond the hard mark, for what no estimate covers, such as fragmentation."""
        return self.total_bytes - self.hard_bytes

    @classmethod
    def of(cls, total_bytes: int) -> "MemoryLimits":
        """Returns the marks of a process that may hold `total_bytes`."""
        return cls(
            total_bytes, int(total_bytes * LOW_SHARE), int(total_bytes * HIGH_SHARE), int(total_bytes * HARD_SHARE)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLedger:
    """The memory of the process, in bytes by purpose.

    Held: `weight_bytes`: loaded models. `state_bytes`: open sequences up to their positions. `hot_bytes` and
    `queued_bytes`: captured state in the hot tier and in the store's write queue; state in both counts twice, because
    it is freed only when both release it. `live_bytes`: states of ended sequences, to be taken over, and
    features of images that no sequence uses. `flight_bytes`: fetches for sequences that are not restored yet, and
    features of images in use. `other_bytes`: the process itself, before it loaded anything.
    Promised: `growth_bytes`: growth of open sequences up to their charges. `transient_bytes`: the most that the next
    step takes, including its growth, so that up to one chunk's state counts twice. `reading_bytes`: used bytes by the
    last reading. Neither held nor promised, but read: `process_bytes`: held by the process, freed buffers included;
    `available_bytes`: what the machine has left for any process.
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
    process_bytes: int | None = None
    available_bytes: int | None = None
    limits: MemoryLimits | None = None

    @property
    def fixed_bytes(self) -> int:
        """The memory that stays when no request runs and all kept state is evicted."""
        return self.weight_bytes + self.other_bytes

    @property
    def held_bytes(self) -> int:
        """The memory held now: the sum of the purposes, or the reading where it is larger by more than the margin."""
        # Purposes and reading are counted at different moments and neither contains the other: promised memory is not
        # read yet, and what the process holds for a moment is in no purpose. The margin covers such differences.
        known = self.fixed_bytes + self.state_bytes + self.hot_bytes + self.queued_bytes
        known += self.flight_bytes + self.live_bytes
        margin = self.limits.margin_bytes if self.limits is not None else 0
        return max(known, (self.reading_bytes or 0) - margin)

    def without_live(self) -> "MemoryLedger":
        """Returns the ledger without live states and kept features, which are evicted for everything else."""
        reading = None if self.reading_bytes is None else max(0, self.reading_bytes - self.live_bytes)
        return replace(self, live_bytes=0, reading_bytes=reading)

    @property
    def used_bytes(self) -> int:
        """The held and promised bytes."""
        return self.held_bytes + self.growth_bytes + self.transient_bytes

    @property
    def kv_room_bytes(self) -> int | None:
        """The memory that states of open sequences can have at most: all below the hard mark that is not fixed, never
        negative, for kept state is evicted for them. None: memory is not bounded."""
        return None if self.limits is None else max(0, self.limits.hard_bytes - self.fixed_bytes)

    @property
    def kv_usage(self) -> float:
        """The share of that room, 0 to 1, that open sequences hold or are promised; 0 where memory is not bounded."""
        used = self.state_bytes + self.flight_bytes + self.growth_bytes
        return 0.0 if self.kv_room_bytes is None else min(1.0, used / max(1, self.kv_room_bytes))

    @property
    def room_bytes(self) -> int | None:
        """The room below the hard mark, never negative; None: memory is not bounded."""
        return None if self.limits is None else max(0, self.limits.hard_bytes - self.used_bytes)
