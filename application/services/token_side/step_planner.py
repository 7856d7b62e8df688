"""What the next step does: the pure plan (`domain/scheduling`), made of the sequences as they are now, of what memory
allows and of what the last steps took, and what follows from a plan for the queue. Nothing is computed here.

A plan that only decodes stands for as many steps as its budget lasts, or until a sequence comes or ends.

Waiting for a place ends by itself: those that are computed come to an end. Memory may be held for as long as a stream
goes on, so that this waiting has an end of its own, an error that says when to come back. Time spent waiting for a
place in between counts too: it is the same client that waits. Compute thread only, but for `QueueWaits.counts`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from application.events import RequestWaits
from application.services.prefix.cache import PrefixCache
from application.services.token_side.event_batcher import EventBatcher
from application.services.token_side.memory_guard import StepGuard
from application.services.token_side.run_table import RunTable
from application.services.token_side.sequence_run import SequenceRun
from domain.errors import DomainError, MemoryBusy
from domain.ids import SequenceId
from domain.scheduling.plan_step import SequenceView, StepLimits, StepPlan, admission_order, plan_step
from domain.scheduling.sequence import WAITING
from domain.scheduling.step_values import StepPace
from domain.scheduling.wait_reason import WaitReason, wait_reasons

MEMORY_WAIT_S = 120.0
"""How long a request may wait in the queue for memory that others hold."""


@dataclass(frozen=True, slots=True)
class Waits:
    """What a step changed: who waits for something else than before, and who has waited too long."""

    changed: Mapping[SequenceId, WaitReason]
    overdue: tuple[SequenceId, ...]


class QueueWaits:
    def __init__(self, memory_wait_s: float = MEMORY_WAIT_S) -> None:
        self._memory_wait_s = memory_wait_s
        self._reasons: dict[SequenceId, WaitReason] = {}
        self._since_ns: dict[SequenceId, int] = {}
        self.counts: Mapping[str, int] = {}
        """By the value of the reason; none that is 0. Any thread."""

    def look(self, sequences: Sequence[SequenceView], limits: StepLimits, plan: StepPlan, now_ns: int) -> Waits:
        """After each step was planned. `sequences`: as the planner saw them."""
        before, self._reasons = self._reasons, wait_reasons(sequences, limits, plan)
        self.counts = Counter(reason.value for reason in self._reasons.values())
        self._since_ns = {
            id: self._since_ns.get(id, now_ns)
            for id, reason in self._reasons.items()
            if reason is WaitReason.MEMORY or (id in self._since_ns and reason is WaitReason.PLACE)
        }
        most_ns = self._memory_wait_s * 1e9
        return Waits(
            {id: reason for id, reason in self._reasons.items() if before.get(id) is not reason},
            tuple(
                id
                for id, since_ns in self._since_ns.items()
                if self._reasons[id] is WaitReason.MEMORY and now_ns - since_ns >= most_ns
            ),
        )

    def error(self) -> MemoryBusy:
        """For who is overdue."""
        return MemoryBusy(
            f"what is being computed left no room in memory for {self._memory_wait_s:g} s; try again later, with a"
            " shorter prompt or fewer requests at once"
        )


class StepClock:
    def __init__(self) -> None:
        self._num_turns = self._num_decodes = self._num_held = 0
        self._turn_ns = self._late_ns = self._decode_ns = self._step_ns = 0

    @property
    def pace(self) -> StepPace:
        turn_ns = self._turn_ns + self._late_ns
        return StepPace(
            self._num_turns,
            turn_ns / 1e9,
            self._decode_ns / 1e9,
            self._num_decodes,
            self._step_ns / 1e9,
            self._num_held,
        )

    def decoded(self, duration_ns: int) -> None:
        """A decode step took so long."""
        if self._num_decodes == 0 and self._num_turns:
            own_ns = self._step_ns = min(duration_ns, self._step_ns)
            self._late_ns = duration_ns - own_ns
        else:
            own_ns = self._step_ns = duration_ns
        self._decode_ns += own_ns
        self._num_decodes += 1

    def prefilled(self, duration_ns: int) -> None:
        """A prefill turn took so long."""
        self._turn_ns, self._decode_ns = duration_ns, 0
        self._num_turns += 1
        self._num_decodes = self._num_held = 0

    def held(self) -> None:
        """The next turn was held for a step."""
        self._num_held += 1


T = TypeVar("T")


class Containment(Protocol):
    """Whoever ends a sequence that fails, which takes it out of the table."""

    def guarded(self, run: SequenceRun, work: Callable[[], T]) -> T | None:
        """None: it raised."""
        ...

    def fail(self, run: SequenceRun, error: DomainError) -> None: ...


class StepPlanner:
    """`queue`: who waits to be admitted, in that order. `is_held`: the next turn waits for a lookup."""

    def __init__(
        self,
        runs: RunTable,
        limits: StepLimits,
        guard: StepGuard,
        waits: QueueWaits,
        clock: StepClock,
        *,
        batcher: EventBatcher,
        prefix_cache: PrefixCache,
        containment: Containment,
    ) -> None:
        self._containment = containment
        self._runs = runs
        self._limits = limits
        self._guard = guard
        self._waits = waits
        self._clock = clock
        self._batcher = batcher
        self._prefix_cache = prefix_cache
        self._last, self._num_standing = StepPlan(), 0
        self.queue: tuple[SequenceId, ...] = ()
        self.is_held = False

    def next(self) -> StepPlan:
        """The last plan once more, where making it anew would cost a step of many rows a tenth and change nothing: it
        only decodes, and whoever is open is who it decodes. Otherwise a new one."""
        plan, self._num_standing = self._last, self._num_standing - 1
        is_same = self._num_standing >= 0 and len(self._runs.of_ids(plan.decode)) == len(plan.decode) == len(self._runs)
        return plan if is_same else self.anew()

    def anew(self) -> StepPlan:
        """Ends who has waited too long; room for whoever it admits is promised."""
        self._prefix_cache.tidy()
        for run in self._runs.in_phase(*WAITING):
            self._containment.guarded(run, run.look)
        found = [(run, self._containment.guarded(run, run.shape)) for run in self._runs.unled()]
        runs = [run for run, _ in found if run in self._runs]
        shapes = {run.id: shape for run, shape in found if shape is not None}
        views = [run.view() for run in runs]
        budget = self._guard.budget(views, shapes)
        plan = plan_step(views, self._limits, budget, self._clock.pace)
        self._last, self._num_standing = plan, budget.lasts if plan.only_decodes else 0
        self._prefix_cache.memory.promise(plan.admitted_bytes)
        for run in runs:
            run.num_waited = plan.num_waited.get(run.id, run.num_waited)
        self.queue = tuple(view.id for view in admission_order(views, self._limits))
        self.is_held = plan.is_held
        if plan.is_held:
            self._clock.held()
        self._look_at_queue(views, plan)
        return plan

    def _look_at_queue(self, views: Sequence[SequenceView], plan: StepPlan) -> None:
        now = self._batcher.now_ns()
        waits = self._waits.look(views, self._limits, plan, now)
        for id, reason in waits.changed.items():
            for run in self._runs.of_ids((id,)):
                self._batcher.emit(RequestWaits(run.request_id, reason.value, now))
        for run in self._runs.of_ids(waits.overdue):
            self._containment.fail(run, self._waits.error())
