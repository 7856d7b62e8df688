"""Keeps the computing process below its hard mark: one ledger, asked before anything is admitted, read or computed.

Each step: count what is held and promised (`domain/memory/demand`), set beside it what is held in fact (`held_memory`),
let `domain/memory/pressure` decide, carry it out. What frees memory at once happens here; what concerns sequences is
the planner's, by the StepBudget. Every change is told.

Compute thread only, but for `limits`, `ledger` and `pressure`. Never raises for what cannot be read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from application.events.memory import MemoryMeasured, PressureRelieved
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.memory_probe import MemoryProbe
from application.services.memory_ledger import MemoryLedger, Purpose
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.live_states import LiveStates
from application.services.token_side.held_memory import READ_EVERY_STEPS, HeldMemory, HostMemory
from domain.ids import SequenceId
from domain.memory.ledger import MemoryLimits, MemoryUse
from domain.memory.pressure import Level, Relief, StepDemand, hot_budget, live_budget, relieve
from domain.memory.shape import MemoryShape
from domain.scheduling.memory_demand import charge_bytes, demand_of, open_bytes
from domain.scheduling.plan_step import SequenceView, StepBudget, StepLimits, admission_order
from domain.scheduling.sequence import WAITING, Phase


class StepGuard(Protocol):
    """`limits`: what the process may hold; `ledger`: what it holds. None: nobody bounds it, or counts."""

    @property
    def limits(self) -> MemoryLimits | None: ...

    @property
    def ledger(self) -> MemoryUse | None: ...

    @property
    def pressure(self) -> str:
        """The level of memory pressure by its name; empty where nobody looks."""
        ...

    def clear_with(self, clear: Callable[[], object]) -> None:
        """How the backend gives freed buffers back; before anything is loaded."""
        ...

    def models_changed(self, *, is_loaded: bool) -> None:
        """A model is in memory now, with its lease, or is no more."""
        ...

    def charge_bytes(self, shape: MemoryShape, num_prompt: int, num_new: int) -> int:
        """What a sequence holds at its longest: asked for each when it comes, and whenever it was preempted, when its
        output so far is part of its prompt."""
        ...

    def budget(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        """Before each step. `views`: every sequence the planner sees, in order of arrival; of one that decodes,
        `num_computed` counts its output too. `shapes`: of the model of each whose model is loaded."""
        ...


class Unguarded:
    """A StepGuard that bounds nothing."""

    limits: MemoryLimits | None = None
    ledger: MemoryUse | None = None
    pressure: str = ""

    def clear_with(self, clear: Callable[[], object]) -> None:
        pass

    def models_changed(self, *, is_loaded: bool) -> None:
        pass

    def charge_bytes(self, shape: MemoryShape, num_prompt: int, num_new: int) -> int:
        return 0

    def budget(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        return StepBudget()


AHEAD_SHARE = 16
"""Prefixes fetched for those who wait may take one part in so many of all memory."""

LASTING_STEPS = 8
"""For so many steps of nothing but decoding a budget stands, below the high mark."""

STUCK_STEPS = 3
"""Who was admitted may wait for a sequence that is not: after so many steps in which nobody computed, that comes in."""


class MemoryGuard:
    """A StepGuard. `limits` None bounds nothing, and the ledger is kept all the same."""

    def __init__(
        self,
        *,
        probe: MemoryProbe,
        limits: MemoryLimits | None,
        hot: HotTier,
        live: LiveStates | None = None,
        memory: MemoryLedger,
        queued_bytes: Callable[[], int],
        steps: StepLimits,
        events: EventSink,
        clock: Clock,
        host: MemoryProbe | None = None,
    ) -> None:
        """`memory`: what everything else reserves. `steps`: what the planner goes by. `queued_bytes`: what waits for
        the store. `host`: reads the host's memory where the backend computes in another; state kept there counts there
        only."""
        self.limits = limits
        self._hot, self._memory = hot, memory
        memory.make_room_with(self._room_for_weights)
        self._live = live or LiveStates()
        self._queued_bytes, self._holds_host = queued_bytes, host is None
        self._host = HostMemory(host) if host is not None else None
        self._steps, self._chunk = steps, steps.prefill_budget
        self._events, self._clock = events, clock
        self._wanted_hot = hot.budget_bytes
        self._relief = Relief(hot.budget_bytes)
        self._held = HeldMemory(probe, limits, lambda num_bytes: self._act("clear_cache", num_bytes))
        self._num_stuck = self._num_lasting = 0
        self.ledger = MemoryUse(limits=limits)

    @property
    def level(self) -> Level:
        return self._relief.level(self._wanted_hot)

    @property
    def pressure(self) -> str:
        return self.level.name.lower() if self.limits is not None else ""

    def clear_with(self, clear: Callable[[], object]) -> None:
        """How the backend gives freed buffers back; called on the compute thread."""
        self._held.clear_with(clear)

    def models_changed(self, *, is_loaded: bool) -> None:
        self._held.clear() if is_loaded else self._held.expire()
        counted = replace(self._counted((), {}), state_bytes=self.ledger.state_bytes)
        self._tell(self._held.loaded(counted) if is_loaded else counted)

    def _room_for_weights(self, num_bytes: int) -> int | None:
        """What weights may have beside what is there; what is kept for later gives way to them where that is enough."""
        limits, ledger = self._held.limits_now(), self.ledger
        if limits is None:
            return None
        used = ledger.used_bytes - ledger.weight_bytes + self._memory.held_bytes(Purpose.WEIGHTS)
        room = limits.hard_bytes - (used - ledger.hot_bytes - ledger.live_bytes)
        if num_bytes <= room and (over := used + num_bytes - limits.high_bytes) > 0:
            over -= self._shrink_live(max(0, self._live.held_bytes - over))
            self._give_hot(max(0, self._hot.held_bytes(with_host=self._holds_host) - max(0, over)))
            self._held.clear()
        return room

    def charge_bytes(self, shape: MemoryShape, num_prompt: int, num_new: int) -> int:
        return charge_bytes(shape, num_prompt, num_new, self._chunk)

    def budget(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        self._held.num_steps += 1 + self._num_lasting
        self._num_lasting = 0  # of what this one's steps may have been
        first = next((view for view in admission_order(views, self._steps) if view.id in shapes), None)
        demand = demand_of(views, shapes, self._chunk, first)
        ledger = self._measured(views, shapes, demand)
        self._held.rest(ledger, is_idle=not views)
        limits = self._held.limits_now()
        if limits is None:
            self.ledger = ledger
            return StepBudget()
        ledger = self._shrink_kept(ledger, limits, demand, first, views, shapes)
        before = self._relief
        self._relief = relieve(ledger, limits, demand, before, before.hot_bytes)
        self._tell_changes(before, ledger)
        self.ledger = ledger = replace(ledger, transient_bytes=demand.step_bytes)
        room = limits.hard_bytes - ledger.used_bytes
        if limits is not self.limits:
            room = min(room, (self._held.reading.available_bytes or 0) - demand.step_bytes)
        self._open_room(room, demand)
        charge, wanted = (first.charge_bytes, first.wanted_bytes) if first is not None else (0, 0)
        beside = max(0, room - (demand.waiting_bytes - charge))
        return StepBudget(
            room_bytes=max(beside, wanted) if self._is_stuck(demand, first) else beside,
            admits=self._relief.admits,
            preempt_bytes=self._relief.preempt_bytes,
            let_go=self._let_go(views),
            lasts=self._lasts(views, ledger, limits),
        )

    def _lasts(self, views: Sequence[SequenceView], ledger: MemoryUse, limits: MemoryLimits) -> int:
        """Rows that decode grow by a token a step, which is nothing beside what lies between the high mark and the hard
        one: below the high one nothing is decided by a few of those. What is kept for later fills memory up to there,
        so that a server which has run for a while is never far below it."""
        is_below = max(ledger.used_bytes, self._held.reading.used_bytes or 0) <= limits.high_bytes
        is_steady = self.level <= Level.LEAN and all(view.phase is Phase.DECODING for view in views)
        self._num_lasting = LASTING_STEPS if is_below and is_steady else 0
        return self._num_lasting

    # ---- counting -----------------------------------------------------------------------------------------------

    def _counted(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> MemoryUse:
        found = open_bytes(views, shapes, self._chunk)
        return MemoryUse(
            weight_bytes=self._memory.held_bytes(Purpose.WEIGHTS),
            state_bytes=found.state_bytes,
            hot_bytes=self._hot.held_bytes(with_host=self._holds_host),
            queued_bytes=self._queued_bytes(),
            flight_bytes=self._memory.held_bytes(Purpose.FETCHES, Purpose.AHEAD),
            live_bytes=self._live.held_bytes,
            other_bytes=self._held.other_bytes,
            growth_bytes=found.growth_bytes,
            limits=self.limits,
        )

    def _measured(
        self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape], demand: StepDemand
    ) -> MemoryUse:
        """Counted, and set beside what is held in fact."""
        return self._held.measured(self._counted(views, shapes), demand, is_calm=self.level is Level.CALM)

    # ---- carrying out -------------------------------------------------------------------------------------------

    def _shrink_kept(
        self,
        ledger: MemoryUse,
        limits: MemoryLimits,
        demand: StepDemand,
        first: SequenceView | None,
        views: Sequence[SequenceView],
        shapes: Mapping[SequenceId, MemoryShape],
    ) -> MemoryUse:
        """Let go of states that were left, where there is no room for them, then give the hot tier its budget; the
        ledger afterwards. Nothing goes for who may be about to take it over."""
        before = self._relief.hot_bytes
        waiting = demand.waiting_bytes if first is not None and first.is_looked_up else 0
        wanted = replace(demand, waiting_bytes=waiting, fetching_bytes=self._memory.wanted_bytes)
        spared = first.takes_over.state if first is not None and first.takes_over is not None else None
        freed = self._shrink_live(live_budget(ledger, limits, wanted), spared)
        budget = hot_budget(ledger, limits, wanted, before, self._wanted_hot)
        if self._host is not None:
            budget = min(budget, self._host.hot_budget(self._hot.held_bytes(), budget))
        freed += self._give_hot(budget)
        if not freed:
            return ledger
        self._held.expire()  # what it held may not have been freed: others hold it, or the allocator does
        return self._measured(views, shapes, demand)

    def _shrink_live(self, num_bytes: int, spared: SequenceId | None = None) -> int:
        """Returns what the states that were left gave back."""
        if num_bytes >= self._live.held_bytes:
            return 0
        freed = self._live.shrink(num_bytes, spared)
        self._act("drop_live", freed)
        return freed

    def _give_hot(self, budget: int) -> int:
        """Set the hot tier's budget; returns what it gave back."""
        before = self._relief.hot_bytes
        if budget == before:
            return 0
        self._relief = replace(self._relief, hot_bytes=budget)
        freed = self._hot.resize(budget)
        if freed:
            self._act("shrink_hot", freed)
        elif budget > before:
            self._act("grow_hot", budget - before)
        return freed

    def _open_room(self, room: int, demand: StepDemand) -> None:
        share = self.limits.total_bytes // AHEAD_SHARE if self.limits is not None else 0
        ahead = max(0, min(share, room)) if self._relief.admits else 0
        host = self._host.room_bytes if self._host is not None else None
        self._memory.open(room, ahead, host, makes_room=demand.num_computing > 0)

    def _let_go(self, views: Sequence[SequenceView]) -> frozenset[SequenceId]:
        """Whose states were to be taken over, as far as the views know, and were let go of."""
        wanted = {view.takes_over.state for view in views if view.takes_over is not None and view.phase in WAITING}
        return frozenset(id for id in wanted if not self._live.has_left(id))

    def _is_stuck(self, demand: StepDemand, first: SequenceView | None) -> bool:
        """Whether nobody is there who could make room, or wait for anything but who waits for admission: then the next
        is admitted whatever it is charged, and goes as far as it gets."""
        is_moving = demand.num_computing or (demand.num_active and self._memory.num_fetches)
        is_moving = is_moving or (first is not None and not first.is_looked_up)
        self._num_stuck = 0 if is_moving else self._num_stuck + 1
        return self._num_stuck > (STUCK_STEPS if demand.num_active else 0)

    # ---- telling ------------------------------------------------------------------------------------------------

    def _tell_changes(self, before: Relief, ledger: MemoryUse) -> None:
        after = self._relief
        if after.admits != before.admits:
            self._act("resume" if after.admits else "pause", 0)
        if after.preempt_bytes:
            self._act("preempt", after.preempt_bytes)
        if after.is_lonely:
            self._act("refuse", 0)
        if after != before or self._held.num_steps % READ_EVERY_STEPS == 1:
            self._tell(ledger)

    def _act(self, kind: str, num_bytes: int) -> None:
        self._events.emit(PressureRelieved(kind, num_bytes, self._clock.now_ns()))

    def _tell(self, ledger: MemoryUse) -> None:
        self.ledger = ledger
        self._events.emit(MemoryMeasured(ledger=ledger, level=self.level.value, at_ns=self._clock.now_ns()))
