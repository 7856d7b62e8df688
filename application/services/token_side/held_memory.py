"""What the computing process holds in fact, for a ledger to go by: when it is read, and what is taken off before.

A reading counts freed buffers that the backend keeps. They are no use: they are cleared before a reading decides
against anybody, and given back once the engine has rested. Clearing takes milliseconds, so when it did not help it is
not repeated in every step unless somebody would be preempted.

Not every step is planned, and not every plan reads: while all is calm, far from the marks, and little changes hands the
last reading stands. Near them it does not: an allocator may keep more between two readings than the hard mark leaves.
While nothing is active, what is read beyond all known purposes becomes a purpose of its own, within a bound: the
process does grow a little, but freed memory that an allocator keeps from the system must not refuse everything for
ever.

It decides nothing else. Compute thread only. Never raises for what cannot be read.
"""

from collections.abc import Callable
from dataclasses import replace

from application.ports.memory_probe import MemoryProbe
from domain.memory.ledger import MemoryLimits, MemoryReading, MemoryUse
from domain.memory.pressure import StepDemand

READ_EVERY_STEPS = 16
READ_AFTER_SHARE = 128
"""A reading stands for so many steps, or until one part in so many of all memory has changed hands."""

MAX_GROWN_SHARE = 8
"""The process itself may turn out larger than when its models were loaded, by one part in so many of all memory."""

CLEAR_EVERY_STEPS = 16
"""Clearing that did not help is tried again after so many steps."""

IDLE_STEPS = 30
"""Looks at an engine without work that lets go of nothing any more, a second apart at most, after which what was freed
is given back: to others of this machine it is worth more then than to the next request."""


class HeldMemory:
    """`reading`: the last one. `other_bytes`: what the process itself holds. `num_steps`: planned so far, counted
    by who plans them."""

    def __init__(self, probe: MemoryProbe, limits: MemoryLimits | None, on_cleared: Callable[[int], object]) -> None:
        """`on_cleared`: told how many bytes clearing before a decision, or after a rest, gave back."""
        self.reading = MemoryReading()
        self.other_bytes = self._other_then = 0
        self.num_steps = 0
        self._probe, self._limits, self._on_cleared = probe, limits, on_cleared
        self._some_bytes = limits.total_bytes // READ_AFTER_SHARE if limits is not None else 1 << 62
        self._clear: Callable[[], object] = lambda: None
        self._known_then = self._num_idle = self._idle_bytes = 0
        self._read_at, self._cleared_at = 0, -CLEAR_EVERY_STEPS

    def clear_with(self, clear: Callable[[], object]) -> None:
        """How the backend gives freed buffers back; called on the compute thread."""
        self._clear = clear

    def clear(self) -> None:
        """Give back what was freed, whoever wants it."""
        self._clear()

    def expire(self) -> None:
        """The last reading stands no longer: something was let go of."""
        self._read_at = 0

    def is_far(self, step_bytes: int) -> bool:
        """Whether what was read and a step of so many bytes stay below the low mark."""
        return self._limits is None or (self.reading.held_bytes or 0) + step_bytes <= self._limits.low_bytes

    def limits_now(self) -> MemoryLimits | None:
        """Lower than what was set where others leave less."""
        available, held = self.reading.available_bytes, self.reading.held_bytes
        if self._limits is None or available is None or held is None or held + available >= self._limits.total_bytes:
            return self._limits
        return MemoryLimits.of(held + available)

    def loaded(self, ledger: MemoryUse) -> MemoryUse:
        """A model is in memory, and nothing was freed since: what is held beyond all that is known is the process. Not
        while requests run: what their steps take for a moment is known to nobody."""
        known = ledger.held_bytes - self.other_bytes
        self._read(known)
        if self.reading.used_bytes is not None and not ledger.state_bytes:
            self.other_bytes = self._other_then = max(0, self.reading.used_bytes - known)
        return replace(ledger, other_bytes=self.other_bytes)

    def measured(self, ledger: MemoryUse, demand: StepDemand, *, is_calm: bool) -> MemoryUse:
        """A ledger of what is known, with a reading that is new enough, and that no freed buffers are in."""
        known, step = ledger.held_bytes, demand.step_bytes
        is_quiet = demand.num_active and is_calm and self.is_far(step)
        if not is_quiet or not self._stands(known):
            self._read(known)
        if self._limits is None or self.is_far(step):
            return replace(ledger, reading_bytes=self.reading.used_bytes if demand.num_active else None)
        beyond_load = (self.reading.used_bytes or 0) - (known - self.other_bytes + self._other_then)
        freed = max(self.reading.cached_bytes, beyond_load)
        wait = 1 if self._decides(known, demand, self._limits) else CLEAR_EVERY_STEPS
        if freed > self._some_bytes and self.num_steps - self._cleared_at >= wait:
            self._clear_freed(known)
        if demand.num_active:
            return replace(ledger, reading_bytes=self.reading.used_bytes)
        self.other_bytes = max(self._other_then, self._grown(known, self._limits))
        return replace(ledger, other_bytes=self.other_bytes)

    def rest(self, ledger: MemoryUse, *, is_idle: bool) -> None:
        """Give back what was freed once after the last work, and once after each time that less is kept than at the
        look before, as when the cache was cleared, a model unloaded or the store's queue written."""
        kept = ledger.weight_bytes + ledger.hot_bytes + ledger.live_bytes + ledger.queued_bytes
        self._num_idle = self._num_idle + 1 if is_idle and kept >= self._idle_bytes else 0
        self._idle_bytes = kept
        if self._num_idle == IDLE_STEPS:
            self._clear_freed(ledger.held_bytes)

    def _stands(self, known: int) -> bool:
        """Whether the last reading is new enough, and little has changed hands since."""
        is_new = self._read_at > 0 and self.num_steps - self._read_at < READ_EVERY_STEPS
        return is_new and abs(known - self._known_then) <= self._some_bytes

    def _grown(self, known: int, limits: MemoryLimits) -> int:
        """What the process itself holds by the last reading, if nothing runs."""
        beyond = (self.reading.used_bytes or 0) - limits.margin_bytes - (known - self.other_bytes)
        return min(beyond, self._other_then + limits.total_bytes // MAX_GROWN_SHARE)

    def _decides(self, known: int, demand: StepDemand, limits: MemoryLimits) -> bool:
        """Whether the last reading would have a sequence lose what is computed, or be taken for the process itself."""
        if not demand.num_active:
            return self._grown(known, limits) > self.other_bytes
        held = max(known, (self.reading.used_bytes or 0) - limits.margin_bytes)
        return held + demand.begun_bytes > limits.hard_bytes

    def _clear_freed(self, known: int) -> None:
        self._cleared_at, before = self.num_steps, self.reading.held_bytes or 0
        self._clear()
        self._read(known)
        self._on_cleared(max(0, before - (self.reading.held_bytes or 0)))

    def _read(self, known: int) -> None:
        self.reading, self._known_then, self._read_at = self._probe.read(), known, max(1, self.num_steps)


class HostMemory:
    """The host's memory beside a backend that computes in another: kept prefixes that came from the store, records that
    wait for it and fetches lie there, and nothing else bounds them together. May hold what nobody else held at the
    start. Compute thread only."""

    def __init__(self, probe: MemoryProbe) -> None:
        self._probe = probe
        found = probe.read()
        free = found.total_bytes if found.available_bytes is None else found.available_bytes + (found.held_bytes or 0)
        self._limits = MemoryLimits.of(free) if free is not None else None
        self.room_bytes: int | None = None
        """Below its hard mark, as it was read last; None where it cannot be read."""

    def hot_budget(self, held_bytes: int, wanted_bytes: int) -> int:
        """Reads. What the hot tier, which holds so much, may hold: nothing more above the low mark, less above the high
        one."""
        held = self._probe.read().held_bytes
        self.room_bytes = None if self._limits is None or held is None else self._limits.hard_bytes - held
        if self._limits is None or held is None or held <= self._limits.low_bytes:
            return wanted_bytes
        return max(0, held_bytes - max(0, held - self._limits.high_bytes))
