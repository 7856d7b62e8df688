"""Keeps the computing process below its hard memory mark: the ledger decides before anything is admitted or computed.

Before each step the guard counts what is held and promised (`domain/scheduling/memory_demand`), compares it with a
reading (`memory_readings`), lets `domain/memory/pressure` decide, and carries the decision out. Memory that is freed at
once is freed here; what concerns sequences is left to the planner, through the StepBudget. Every change is an event.

Compute thread only, except where an attribute says otherwise. What cannot be read raises nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from application.events import MemoryMeasured, PressureRelieved
from application.ports.clock import Clock
from application.ports.compute import MemoryProbe
from application.ports.event_sink import EventSink
from application.services.memory_leases import Purpose
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.live_tier import LiveTier
from application.services.token_side.images import EngineImages
from application.services.token_side.memory_readings import HostMemory, MemoryReadings
from domain.ids import SequenceId
from domain.memory.ledger import MemoryLedger, MemoryLimits
from domain.memory.pressure import Level, Relief, StepDemand, hot_budget, live_budget, relieve
from domain.memory.shape import MemoryShape
from domain.scheduling.memory_demand import charge_bytes, demand_of
from domain.scheduling.plan_step import admission_order
from domain.scheduling.step_values import DecodingView, SequenceView, StepBudget, StepLimits, WaitingView

AHEAD_SHARE = 16
"""Prefixes that are fetched for queued sequences may take this fraction (one divided by it) of all memory."""

LASTING_STEPS = 8
"""The number of further steps for which a budget stands while all sequences decode, below the high mark."""

FORCED_STEPS = 3
"""The number of steps without computation after which the next queued sequence is admitted whatever it is charged: the
admitted ones may be waiting for it."""

HELD_STEPS = 2000
"""The number of steps, each of a few milliseconds, for which a turn waits for the store. A store that hangs writes
nothing, and the sequence is preempted then."""

MEASURE_EVERY_STEPS = 16
"""The number of steps after which the ledger is reported while nothing changes."""


class MemoryGuard:
    """The guard of the process's memory. `limits`: the memory that it may hold; None bounds nothing. `ledger`: the
    memory that it holds, counted in either case. Any thread may read both. `images`: whose features it drops."""

    def __init__(
        self,
        *,
        probe: MemoryProbe,
        limits: MemoryLimits | None,
        hot: HotTier,
        live: LiveTier,
        queued_bytes: Callable[[], int],
        steps: StepLimits,
        events: EventSink,
        clock: Clock,
        host: MemoryProbe | None = None,
    ) -> None:
        """`steps`: the planner's limits. `queued_bytes`: returns the bytes that wait for the store. `host`: reads the
        host's memory where the backend computes in another; state kept there counts there only."""
        self.limits = limits
        self.images: EngineImages | None = None
        self._hot, self._live, self._leases = hot, live, live.memory
        self._leases.make_room_with(self._room_for_weights)
        self._queued_bytes, self._holds_host = queued_bytes, host is None
        self._host = HostMemory(host) if host is not None else None
        self._steps, self._chunk = steps, steps.prefill_budget
        self._events, self._clock = events, clock
        self._wanted_hot = hot.budget_bytes
        self._relief = Relief()
        self._readings = MemoryReadings(probe, limits, lambda _num_bytes: self._emit("clear_cache"))
        self._num_stuck = self._num_lasting = self._num_held = self._reported_at = 0
        self.ledger = MemoryLedger(limits=limits)

    @property
    def level(self) -> Level:
        return self._relief.level(is_lean=self._hot.budget_bytes < self._wanted_hot)

    @property
    def pressure(self) -> str:
        """The level of memory pressure by its name; empty where nothing bounds memory. Any thread."""
        return self.level.name.lower() if self.limits is not None else ""

    def clear_with(self, clear: Callable[[], object]) -> None:
        """Registers how the backend gives freed buffers back; before anything is loaded."""
        self._readings.clear = clear

    def models_changed(self, *, is_loaded: bool) -> None:
        """Counts a model that was loaded, with its lease, or unloaded."""
        counted = replace(self._counted(StepDemand()), state_bytes=self.ledger.state_bytes)
        if is_loaded:
            self._readings.clear()
            counted = self._readings.loaded(counted)
        self._report(counted)

    def _room_for_weights(self, num_bytes: int) -> int | None:
        """Returns the room for weights; None: any amount. Kept states and prefixes are evicted where that is enough."""
        limits, ledger = self._readings.limits_now(), self.ledger
        if limits is None:
            return None
        # The ledger is of the last step. Leases count at once, so that two loads between steps cannot take the same
        # room.
        used = ledger.used_bytes - ledger.weight_bytes + self._leases.held_bytes(Purpose.WEIGHTS)
        room = limits.hard_bytes - (used - ledger.hot_bytes - ledger.live_bytes)
        # Room that is not enough after all evictions is left to what is kept: the load is refused in any case.
        if num_bytes <= room and (over := used + num_bytes - limits.high_bytes) > 0:
            over -= self._shrink_live(max(0, self._live_bytes - over))
            self._resize_hot(max(0, self._hot.held_bytes(with_host=self._holds_host) - max(0, over)))
            self._readings.clear()
        return room

    def charge_bytes(self, shape: MemoryShape, num_prompt: int, num_new: int) -> int:
        """Returns what a sequence holds at its longest. Called when it arrives and after each preemption, when its
        output so far is part of its prompt."""
        return charge_bytes(shape, num_prompt, num_new, self._chunk)

    def budget(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        """Returns the memory budget of one step, after room was made for it. `views`: every sequence that the planner
        sees, in order of arrival; `num_computed` of one that decodes includes its output. `shapes`: the memory shape of
        each whose model is loaded."""
        self._readings.num_steps += 1 + self._num_lasting
        self._num_lasting = 0
        first = next((view for view in admission_order(views, self._steps) if view.id in shapes), None)
        demand = demand_of(views, shapes, self._chunk, first)
        demand = replace(demand, is_forced=self._is_forced(demand, first))
        ledger = self._readings.measured(self._counted(demand), demand)
        self._readings.clear_when_idle(ledger, is_idle=not views)
        limits = self._readings.limits_now()
        if limits is None:
            self.ledger = ledger
            return StepBudget()
        if self._shrink_kept(ledger, limits, demand, first):
            ledger = self._readings.measured(self._counted(demand), demand)
        before = self._relief
        may_hold = self._num_held < HELD_STEPS and not any(isinstance(view, DecodingView) for view in views)
        self._relief = relieve(ledger, limits, demand, is_paused=not before.admits, may_hold=may_hold)
        self._num_held = self._num_held + 1 if self._relief.is_held else 0
        self._report_changes(before, ledger)
        self.ledger = ledger = replace(ledger, transient_bytes=demand.step_bytes)
        room = limits.hard_bytes - ledger.used_bytes
        if limits is not self.limits:
            # Other processes leave less than the setting. What they leave is all that there is, however little of what
            # the ledger counts this process holds.
            room = min(room, (self._readings.reading.available_bytes or 0) - demand.step_bytes)
        self._open_room(room, demand)
        charge, wanted = (first.charge_bytes, first.wanted_bytes) if first is not None else (0, 0)
        # The planner takes the charge of each sequence that it admits. What the first one needs beyond its charge, its
        # last chunk, is set aside once, because the last chunks of several are computed one after the other.
        beside = max(0, room - (demand.waiting_bytes - charge))
        return StepBudget(
            room_bytes=max(beside, wanted) if demand.is_forced else beside,
            admits=self._relief.admits,
            preempt_bytes=self._relief.preempt_bytes,
            evicted=self._evicted(views),
            lasts=self._lasts(views, ledger, limits),
            is_held=self._relief.is_held,
        )

    def _lasts(self, views: Sequence[SequenceView], ledger: MemoryLedger, limits: MemoryLimits) -> int:
        """Returns for how many more steps the budget stands. Decoding rows grow by a token a step, which is nothing
        beside what lies between the high mark and the hard one. The high mark is the bound because kept prefixes fill
        memory up to it on a server that has run for a while."""
        is_below = max(ledger.used_bytes, self._readings.reading.used_bytes or 0) <= limits.high_bytes
        is_steady = self.level <= Level.LEAN and all(isinstance(view, DecodingView) for view in views)
        self._num_lasting = LASTING_STEPS if is_below and is_steady else 0
        return self._num_lasting

    # ---- counting -----------------------------------------------------------------------------------------------

    def _counted(self, demand: StepDemand) -> MemoryLedger:
        used = self.images.used_bytes if self.images is not None else 0
        return MemoryLedger(
            weight_bytes=self._leases.held_bytes(Purpose.WEIGHTS),
            state_bytes=demand.state_bytes,
            hot_bytes=self._hot.held_bytes(with_host=self._holds_host),
            queued_bytes=self._queued_bytes(),
            flight_bytes=self._leases.held_bytes(Purpose.FETCHES, Purpose.AHEAD) + used,
            live_bytes=self._live_bytes,
            other_bytes=self._readings.other_bytes,
            growth_bytes=demand.growth_bytes,
            limits=self.limits,
        )

    # ---- relief -------------------------------------------------------------------------------------------

    def _shrink_kept(
        self, ledger: MemoryLedger, limits: MemoryLimits, demand: StepDemand, first: WaitingView | None
    ) -> int:
        """Evicts features and live states that have no room, then sets the hot tier's budget. Returns the bytes given
        back. A state that the next sequence takes over is spared."""
        waiting = demand.waiting_bytes if first is not None and first.is_looked_up else 0
        wanted = replace(demand, waiting_bytes=waiting, fetching_bytes=self._leases.wanted_bytes)
        spared = first.takes_over.state if first is not None and first.takes_over is not None else None
        freed = self._shrink_live(live_budget(ledger, limits, wanted), spared)
        budget = hot_budget(ledger, limits, wanted, self._hot.budget_bytes, self._wanted_hot)
        if self._host is not None:
            budget = min(budget, self._host.hot_budget(self._hot.held_bytes(), budget))
        return freed + self._resize_hot(budget)

    @property
    def _live_bytes(self) -> int:
        return self._live.held_bytes + (self.images.kept_bytes if self.images is not None else 0)

    def _shrink_live(self, num_bytes: int, spared: SequenceId | None = None) -> int:
        """Drops features of images, then live states, down to `num_bytes`. Returns the bytes given back."""
        freed = 0
        if self.images is not None and (freed := self.images.shrink(max(0, num_bytes - self._live.held_bytes))):
            self._emit("drop_features")
        if num_bytes < self._live.held_bytes:
            freed += self._live.shrink(num_bytes, spared)
            self._emit("drop_live")
        return freed

    def _resize_hot(self, budget: int) -> int:
        """Sets the hot tier's budget. Returns the bytes given back."""
        before = self._hot.budget_bytes
        if budget == before:
            return 0
        freed = self._hot.resize(budget)
        if freed:
            self._emit("shrink_hot")
        elif budget > before:
            self._emit("grow_hot")
        return freed

    def _open_room(self, room: int, demand: StepDemand) -> None:
        share = self.limits.total_bytes // AHEAD_SHARE if self.limits is not None else 0
        ahead = max(0, min(share, room)) if self._relief.admits else 0
        host = self._host.room_bytes if self._host is not None else None
        self._leases.open(room, ahead, host, makes_room=demand.num_computing > 0)

    def _evicted(self, views: Sequence[SequenceView]) -> frozenset[SequenceId]:
        """Returns the states that queued sequences are to take over by their views, and that were evicted since."""
        found = [
            view.takes_over.state for view in views if isinstance(view, WaitingView) and view.takes_over is not None
        ]
        return frozenset(id for id in found if not self._live.has(id))

    def _is_forced(self, demand: StepDemand, first: WaitingView | None) -> bool:
        """Returns whether no sequence could make room for the next one, so that it is admitted whatever it is charged
        and runs as far as it gets."""
        # Preflight let it pass, so only an estimate or a reading can be in the way, and no wait changes either.
        # Admitted sequences that wait for their prefix make no room, but their fetch may still end.
        is_moving = demand.num_computing or (demand.num_active and self._leases.num_fetches)
        is_moving = is_moving or (first is not None and not first.is_looked_up)
        self._num_stuck = 0 if is_moving else self._num_stuck + 1
        return self._num_stuck > (FORCED_STEPS if demand.num_active else 0)

    # ---- events -------------------------------------------------------------------------------------------------

    def _report_changes(self, before: Relief, ledger: MemoryLedger) -> None:
        after = self._relief
        if after.admits != before.admits:
            self._emit("resume" if after.admits else "pause")
        if after.preempt_bytes:
            self._emit("preempt")
        if after.preempts_only:
            self._emit("refuse")
        if after != before or self._readings.num_steps - self._reported_at >= MEASURE_EVERY_STEPS:
            self._report(ledger)

    def _emit(self, kind: str) -> None:
        self._events.emit(PressureRelieved(kind, self._clock.now_ns()))

    def _report(self, ledger: MemoryLedger) -> None:
        self.ledger, self._reported_at = ledger, self._readings.num_steps
        self._events.emit(MemoryMeasured(ledger=ledger, level=self.level.value, at_ns=self._clock.now_ns()))
