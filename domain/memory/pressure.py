"""What is done when memory gets short: decided purely from the ledger, what the next step takes, and what holds so far.

    level        what is done                                                  undone
    CALM         nothing, but that states which ended sequences left give way
    LEAN         the hot tier is smaller than it is set to be                  below the low mark, an eighth at a time
    PAUSED       nobody is admitted                                            when a whole step stays below low
    PREEMPTING   the youngest give back what they hold, and go on later        the next time
    REFUSING     the only one there is has to; if it comes no further, it fails  the next time

The hot tier gives back and admission pauses at the high mark, where that is enough; sequences are preempted only before
the hard one. Chunks stay on the canonical grid, however short memory is. What one step gives back is not taken at once
by the next: letting go happens at the high mark or the hard one, taking again at the low one. The
backend's cache of freed buffers is no level: it is cleared before a reading decides anything. And nobody waits for
nothing: while no sequence computes, admission does not pause.
"""

from dataclasses import dataclass
from enum import IntEnum

from domain.memory.ledger import MemoryLimits, MemoryUse

HOT_STEPS = 8
"""The hot tier grows back in so many steps."""


class Level(IntEnum):
    CALM = 0
    LEAN = 1
    PAUSED = 2
    PREEMPTING = 3
    REFUSING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDemand:
    """`step_bytes`: what the next step takes beyond what is held, with those that are being restored, which may compute
    in it: all that it computes grows, and what is captured of that is copied. `begun_bytes`: the same of those that
    compute already. `waiting_bytes`: the charge of who would be admitted next; 0: nobody waits; `waiting_has_bytes`:
    what the state holds of it that it takes over. `fetching_bytes`: what somebody who was admitted lacks to fetch what
    it starts from; 0: nobody does. `num_active`: sequences that hold something, or are about to; `num_computing`: of
    those, the ones that compute, and will end."""

    step_bytes: int = 0
    begun_bytes: int = 0
    waiting_bytes: int = 0
    waiting_has_bytes: int = 0
    fetching_bytes: int = 0
    num_active: int = 0
    num_computing: int = 0


@dataclass(frozen=True, slots=True)
class Relief:
    """What holds for the next step. `hot_bytes`: the hot tier's budget. `preempt_bytes`: to be given back. `is_lonely`:
    by the only one there is."""

    hot_bytes: int
    admits: bool = True
    preempt_bytes: int = 0
    is_lonely: bool = False

    def level(self, hot_budget_bytes: int) -> Level:
        if self.is_lonely:
            return Level.REFUSING
        if self.preempt_bytes:
            return Level.PREEMPTING
        if not self.admits:
            return Level.PAUSED
        return Level.LEAN if self.hot_bytes < hot_budget_bytes else Level.CALM


def live_budget(ledger: MemoryUse, limits: MemoryLimits, demand: StepDemand) -> int:
    """What states may hold from now on that ended sequences left: what the hot tier leaves as it is filled now, and the
    one that is about to be taken over in any case."""
    allowed = _kept_bytes(ledger.without_live(), limits, demand)
    return max(0, allowed - ledger.hot_bytes, _spared_bytes(allowed, demand))


def hot_budget(ledger: MemoryUse, limits: MemoryLimits, demand: StepDemand, hot_bytes: int, wanted_bytes: int) -> int:
    """What the hot tier may hold from now on. `hot_bytes`: its budget so far; `wanted_bytes`: what it is set to be."""
    ledger = ledger.without_live()
    step, kept = demand.step_bytes, _kept_bytes(ledger, limits, demand)
    spared = _spared_bytes(kept, demand)
    allowed = kept - spared
    if allowed < hot_bytes:
        # Only what is there has to go; room that nothing fills is not held.
        return max(0, allowed)
    room = limits.low_bytes - ledger.held_bytes - spared - step
    return min(wanted_bytes, allowed, hot_bytes + wanted_bytes // HOT_STEPS + 1) if room > 0 else hot_bytes


def _kept_bytes(ledger: MemoryUse, limits: MemoryLimits, demand: StepDemand) -> int:
    """What all that is kept for later may hold; negative where even nothing is too much."""
    others, step = ledger.held_bytes - ledger.hot_bytes, demand.step_bytes
    allowed = limits.high_bytes - others - step
    free = limits.hard_bytes - others - ledger.growth_bytes - step
    for wanted, has in ((demand.waiting_bytes, demand.waiting_has_bytes), (demand.fetching_bytes, 0)):
        # Kept prefixes make room for who waits, unless it would not fit even without them.
        if wanted and free >= wanted:
            allowed = min(allowed, free - wanted + has)
    return allowed


def _spared_bytes(allowed: int, demand: StepDemand) -> int:
    """What who waits takes over, of all that is kept: it goes on from it whole, or not at all."""
    return demand.waiting_has_bytes if demand.waiting_has_bytes <= allowed else 0


def relieve(ledger: MemoryUse, limits: MemoryLimits, demand: StepDemand, before: Relief, hot_bytes: int) -> Relief:
    """What else is done, once the hot tier holds no more than `hot_bytes`."""
    over = ledger.held_bytes + demand.begun_bytes - limits.hard_bytes
    used = ledger.without_live().held_bytes + demand.step_bytes
    return Relief(
        hot_bytes,
        admits=_admits(used, limits, demand, is_paused=not before.admits),
        # Down to the high mark, so that it is not needed again in the next step.
        preempt_bytes=over + limits.hard_bytes - limits.high_bytes if over > 0 and demand.num_active else 0,
        is_lonely=over > 0 and demand.num_active == 1,
    )


def _admits(used: int, limits: MemoryLimits, demand: StepDemand, *, is_paused: bool) -> bool:
    return not demand.num_computing or used <= (limits.low_bytes if is_paused else limits.high_bytes)
