"""Readings of the memory that the computing process holds in fact, beside the ledger of what is known.

A reading counts freed buffers that the backend keeps for reuse. They are cleared before a reading decides against a
sequence, and again once the engine has been idle for a while. Clearing takes milliseconds, so that after it did not
help it is not repeated in every step, unless a sequence would be preempted.

While no sequence is active, memory that was read beyond all known purposes becomes a purpose of its own, within a
bound: the process does grow a little, but freed memory that an allocator keeps must not cause every later request to be
refused. Compute thread only. What cannot be read raises nothing.
"""

from collections.abc import Callable
from dataclasses import replace

from application.ports.compute import MemoryProbe
from domain.memory.ledger import MemoryLedger, MemoryLimits, MemoryReading
from domain.memory.pressure import StepDemand

READ_EVERY_STEPS = 16
"""The number of steps for which a reading stands below the low mark: it takes 0.2 ms on a CPU, of steps of 3 ms."""

SMALL_SHARE = 128
"""Small is this fraction (one divided by it) of all memory: a reading is valid until more was reserved or released, and
fewer freed buffers are not cleared."""

MAX_GROWN_SHARE = 8
"""The process itself may grow, after its models were loaded, by this fraction (one divided by it) of all memory."""

CLEAR_EVERY_STEPS = 16
"""The number of steps after which clearing that did not help is tried again."""

IDLE_STEPS = 30
"""The number of budgets without a sequence, a second apart at most, after which freed buffers are given back: other
programs of this machine need them more then than the next request."""


class MemoryReadings:
    """The readings of a probe. `reading`: the last one. `other_bytes`: held by the process itself. `num_steps`: steps
    so far, counted by the caller."""

    def __init__(self, probe: MemoryProbe, limits: MemoryLimits | None, on_cleared: Callable[[int], object]) -> None:
        """`on_cleared`: called with the bytes that clearing before a decision, or while idle, gave back."""
        self.reading = MemoryReading()
        self.other_bytes = self._loaded_other_bytes = 0
        self.num_steps = 0
        self.clear: Callable[[], object] = lambda: None
        """Returns freed buffers of the backend to the system; set before anything is loaded."""
        self._probe, self._limits, self._on_cleared = probe, limits, on_cleared
        self._num_idle = self._idle_bytes = self._known_then = 0
        self._read_at = -READ_EVERY_STEPS
        self._cleared_at = -CLEAR_EVERY_STEPS

    def limits_now(self) -> MemoryLimits | None:
        """Returns the limits, lowered where other processes leave less."""
        available, held = self.reading.available_bytes, self.reading.held_bytes
        if self._limits is None or available is None or held is None or held + available >= self._limits.total_bytes:
            return self._limits
        return MemoryLimits.of(held + available)

    def loaded(self, ledger: MemoryLedger) -> MemoryLedger:
        """Returns the ledger after a load: all that is read beyond what is known is the process itself. Not while
        requests run, because their steps hold memory for a moment that no purpose counts."""
        known = ledger.held_bytes - self.other_bytes
        self.reading = self._probe.read()
        if self.reading.used_bytes is not None and not ledger.state_bytes:
            self.other_bytes = self._loaded_other_bytes = max(0, self.reading.used_bytes - known)
        return replace(self._with_reading(ledger), other_bytes=self.other_bytes)

    def measured(self, ledger: MemoryLedger, demand: StepDemand) -> MemoryLedger:
        """Returns the ledger with a recent reading, after freed buffers were cleared if they matter."""
        limits, known = self._limits, ledger.held_bytes
        # Without an active sequence every step reads, because what is read then becomes the process itself.
        if not (demand.num_active and self._is_below_low(demand) and self._is_valid(known)):
            self.reading, self._known_then, self._read_at = self._probe.read(), known, self.num_steps
        if limits is None or self._is_below_low(demand):
            return replace(
                self._with_reading(ledger), reading_bytes=self.reading.used_bytes if demand.num_active else None
            )
        # An allocator keeps freed memory of its own, which no count of cached buffers shows: all that is read beyond
        # the known purposes and the process at its load may be such memory.
        beyond_load = (self.reading.used_bytes or 0) - (known - self.other_bytes + self._loaded_other_bytes)
        is_much = max(self.reading.cached_bytes, beyond_load) > limits.total_bytes // SMALL_SHARE
        wait = 1 if self._decides(known, demand, limits) else CLEAR_EVERY_STEPS
        if is_much and self.num_steps - self._cleared_at >= wait:
            self._clear_freed()
        if demand.num_active:
            return replace(self._with_reading(ledger), reading_bytes=self.reading.used_bytes)
        self.other_bytes = max(self._loaded_other_bytes, self._grown(known, limits))
        return replace(self._with_reading(ledger), other_bytes=self.other_bytes)

    def clear_when_idle(self, ledger: MemoryLedger, *, is_idle: bool) -> None:
        """Gives freed buffers back once after the last work, and once whenever less is kept than in the step before:
        the cache was cleared, a model unloaded, or the store's queue written. Called in every step."""
        kept = ledger.weight_bytes + ledger.hot_bytes + ledger.live_bytes + ledger.queued_bytes
        self._num_idle = self._num_idle + 1 if is_idle and kept >= self._idle_bytes else 0
        self._idle_bytes = kept
        if self._num_idle == IDLE_STEPS:
            self._clear_freed()

    def _with_reading(self, ledger: MemoryLedger) -> MemoryLedger:
        return replace(ledger, process_bytes=self.reading.held_bytes, available_bytes=self.reading.available_bytes)

    def _is_below_low(self, demand: StepDemand) -> bool:
        low_bytes = self._limits.low_bytes if self._limits is not None else 0
        return (self.reading.held_bytes or 0) + demand.step_bytes <= low_bytes

    def _is_valid(self, known: int) -> bool:
        """Returns whether the last reading is recent, and the known memory has hardly changed since."""
        small_bytes = self._limits.total_bytes // SMALL_SHARE if self._limits is not None else 0
        return self.num_steps - self._read_at < READ_EVERY_STEPS and abs(known - self._known_then) <= small_bytes

    def _grown(self, known: int, limits: MemoryLimits) -> int:
        """Returns the bytes of the process itself by the last reading, if no sequence is active."""
        # A reading counts beyond the margin only, as in `held_bytes`. Unbounded, memory that an allocator keeps after
        # one large request would be taken from all later ones for good.
        beyond = (self.reading.used_bytes or 0) - limits.margin_bytes - (known - self.other_bytes)
        return min(beyond, self._loaded_other_bytes + limits.total_bytes // MAX_GROWN_SHARE)

    def _decides(self, known: int, demand: StepDemand, limits: MemoryLimits) -> bool:
        """Returns whether the last reading would preempt a sequence, or would count as growth of the process."""
        if not demand.num_active:
            return self._grown(known, limits) > self.other_bytes
        held = max(known, (self.reading.used_bytes or 0) - limits.margin_bytes)
        return held + demand.begun_bytes > limits.hard_bytes

    def _clear_freed(self) -> None:
        self._cleared_at, before = self.num_steps, self.reading.held_bytes or 0
        self.clear()
        self.reading = self._probe.read()
        self._on_cleared(max(0, before - (self.reading.held_bytes or 0)))


class HostMemory:
    """The host's memory beside a backend that computes in another memory. It holds prefixes that came from the store,
    records that wait for it, and fetches; nothing else bounds their sum. The limit is what was free at the start.
    Compute thread only.

    `room_bytes`: below the hard mark by the last reading; None where it cannot be read."""

    def __init__(self, probe: MemoryProbe) -> None:
        self._probe = probe
        found = probe.read()
        free = found.total_bytes if found.available_bytes is None else found.available_bytes + (found.held_bytes or 0)
        self._limits = MemoryLimits.of(free) if free is not None else None
        self.room_bytes: int | None = None

    def hot_budget(self, held_bytes: int, wanted_bytes: int) -> int:
        """Reads the host's memory and returns the budget of a hot tier that holds `held_bytes`: it does not grow above
        the low mark, and shrinks above the high one."""
        held = self._probe.read().held_bytes
        self.room_bytes = None if self._limits is None or held is None else self._limits.hard_bytes - held
        if self._limits is None or held is None or held <= self._limits.low_bytes:
            return wanted_bytes
        return max(0, held_bytes - max(0, held - self._limits.high_bytes))
