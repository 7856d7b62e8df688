"""The reaction to memory pressure: a pure function of the ledger, the demand of the next step, and the relief so far.

    level        reaction                                                    undone
    CALM         none, except that features of images and live states are evicted
    LEAN         the hot tier is smaller than its setting                    below the low mark, an eighth at a time
    PAUSED       no sequence is admitted                                     when a whole step stays below the low mark
    PREEMPTING   the youngest sequences release their states; the only one   in the next step
                 waits for a while where writing its records makes room
    REFUSING     the only active sequence is preempted, and fails after a    in the next step
                 few preemptions without progress

At the high mark the hot tier shrinks and admission pauses, where that is enough; sequences are preempted only before
the hard mark. Chunks stay on the canonical grid. Memory that one step gives back is taken again only below the low
mark, so that reactions do not alternate. The backend's cache of freed buffers is cleared before a reading decides.
While no sequence computes, admission does not pause, because no end of a sequence would resume it.
"""

from dataclasses import dataclass
from enum import IntEnum

from domain.memory.ledger import MemoryLedger, MemoryLimits

HOT_STEPS = 8
"""The number of steps in which the hot tier grows back."""


class Level(IntEnum):
    CALM = 0
    LEAN = 1
    PAUSED = 2
    PREEMPTING = 3
    REFUSING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDemand:
    """The memory of sequences. `state_bytes`: held by those that are open; `growth_bytes`: what they may still grow by,
    up to their charges. `step_bytes`: the next step beyond what is held: growth, copies for the cache and transients,
    including drafts and sequences that are being restored. `begun_bytes`: the same without those. `waiting_bytes`:
    needed by the next sequence to admit; 0: none waits. `waiting_has_bytes`: the part of it in a state that it takes
    over. `is_forced`: it is admitted also where it does not fit. `fetching_bytes`: a refused fetch
    of an admitted sequence; 0: none. `num_active`: sequences that hold memory, or are about to. `num_computing`: those
    of them that compute, and will end."""

    state_bytes: int = 0
    growth_bytes: int = 0
    step_bytes: int = 0
    begun_bytes: int = 0
    waiting_bytes: int = 0
    waiting_has_bytes: int = 0
    is_forced: bool = False
    fetching_bytes: int = 0
    num_active: int = 0
    num_computing: int = 0


@dataclass(frozen=True, slots=True)
class Relief:
    """The reaction for the next step. `preempt_bytes`: to be given back by preemption. `preempts_only`: of the only
    active sequence. `is_held`: its next prefill turn waits, because writing its records makes room."""

    admits: bool = True
    preempt_bytes: int = 0
    preempts_only: bool = False
    is_held: bool = False

    def level(self, *, is_lean: bool) -> Level:
        """Returns the level of pressure. `is_lean`: the hot tier is smaller than its setting."""
        if self.preempts_only:
            return Level.REFUSING
        if self.preempt_bytes:
            return Level.PREEMPTING
        if not self.admits:
            return Level.PAUSED
        return Level.LEAN if is_lean else Level.CALM


def live_budget(ledger: MemoryLedger, limits: MemoryLimits, demand: StepDemand) -> int:
    """Returns the budget of live states and kept features: what the hot tier leaves at its present size, and in any
    case the state that is about to be taken over."""
    allowed = _kept_bytes(ledger.without_live(), limits, demand)
    # The hot tier comes first, because it serves every request and a live state only the next turn of one. But evicting
    # the state that the next sequence takes over would free nothing for long: it would be restored at once.
    return max(0, allowed - ledger.hot_bytes, _taken_over_bytes(allowed, demand))


def hot_budget(
    ledger: MemoryLedger, limits: MemoryLimits, demand: StepDemand, hot_bytes: int, wanted_bytes: int
) -> int:
    """Returns the budget of the hot tier. `hot_bytes`: the one so far. `wanted_bytes`: its setting."""
    # Live states go before any record of the hot tier, so they are no reason to shrink it.
    ledger = ledger.without_live()
    step, kept = demand.step_bytes, _kept_bytes(ledger, limits, demand)
    taken_over = _taken_over_bytes(kept, demand)
    allowed = kept - taken_over
    if allowed < hot_bytes:
        return max(0, allowed)
    # It shrinks above the high mark and grows below the low one, a part at a time: a tier that grew at once would be
    # shrunk again by the next step, and each time records go that have to be fetched from the store.
    room = limits.low_bytes - ledger.held_bytes - taken_over - step
    return min(wanted_bytes, allowed, hot_bytes + wanted_bytes // HOT_STEPS + 1) if room > 0 else hot_bytes


def _kept_bytes(ledger: MemoryLedger, limits: MemoryLimits, demand: StepDemand) -> int:
    """Returns the budget of all kept state; negative where memory is short even without any."""
    others, step = ledger.held_bytes - ledger.hot_bytes, demand.step_bytes
    # The high mark bounds what exists. Growth to the charges is not there yet, and kept state may use its room until
    # then, because it is evicted in no time. A sequence that is admitted is promised its charge up to the hard mark, so
    # for one that waits the growth of the others counts.
    allowed = limits.high_bytes - others - step
    free = limits.hard_bytes - others - ledger.growth_bytes - step
    for wanted, has in ((demand.waiting_bytes, demand.waiting_has_bytes), (demand.fetching_bytes, 0)):
        # Kept state makes room for a waiting sequence, unless that would not fit even without any and can wait. The
        # state that it takes over is kept state and part of what it needs, so it is not to be freed for it.
        if wanted and (free >= wanted or demand.is_forced):
            allowed = min(allowed, max(0, free - wanted) + has)
    return allowed


def _taken_over_bytes(allowed: int, demand: StepDemand) -> int:
    """Returns the size of the state that the next sequence takes over: all of it stays, or nothing."""
    return demand.waiting_has_bytes if demand.waiting_has_bytes <= allowed else 0


def relieve(
    ledger: MemoryLedger, limits: MemoryLimits, demand: StepDemand, *, is_paused: bool, may_hold: bool = False
) -> Relief:
    """Returns the further reaction, after kept state was evicted. `is_paused`: admission was paused before. `may_hold`:
    the next step may wait for the store."""
    # Preemption is the last resort, so only what cannot wait counts: fetches and drafts do not. Admission pauses for
    # everything that the next step would hold, except live states, which the next eviction frees.
    over = ledger.held_bytes + demand.begun_bytes - limits.hard_bytes
    used = ledger.without_live().held_bytes + demand.step_bytes
    # A preempted sequence that is alone would be admitted again at once and need the same. The records that it has
    # queued for the store are freed as they are written, which is sooner than it would be back at its position.
    if may_hold and demand.num_active == 1 and 0 < over <= ledger.queued_bytes:
        return Relief(admits=False, is_held=True)
    return Relief(
        admits=not demand.num_computing or used <= (limits.low_bytes if is_paused else limits.high_bytes),
        # Down to the high mark, so that the next step does not have to preempt again.
        preempt_bytes=over + limits.hard_bytes - limits.high_bytes if over > 0 and demand.num_active else 0,
        preempts_only=over > 0 and demand.num_active == 1,
    )
