"""What the next step does: the pure plan (`domain/scheduling`), made of the sequences as they are now and of what
memory allows, and what follows from a plan for who is in the queue. Compute thread only; nothing is computed here.

A plan that only decodes stands for as many steps as its budget lasts, or until somebody comes or ends.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from application.events import RequestWaits
from application.services.prefix.cache import PrefixCache
from application.services.token_side.memory_guard import StepGuard
from application.services.token_side.outlet import Outlet
from application.services.token_side.queue_waits import QueueWaits
from application.services.token_side.run_table import RunTable
from application.services.token_side.sequence_run import SequenceRun
from application.services.token_side.step_clock import StepClock
from domain.errors import DomainError
from domain.ids import SequenceId
from domain.scheduling import SequenceView, StepLimits, StepPlan, admission_order, plan_step
from domain.sequence import WAITING

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
        outlet: Outlet,
        prefix_cache: PrefixCache,
    ) -> None:
        self._runs = runs
        self._limits = limits
        self._guard = guard
        self._waits = waits
        self._clock = clock
        self._outlet = outlet
        self._prefix_cache = prefix_cache
        self._last, self._num_standing = StepPlan(), 0
        self.queue: tuple[SequenceId, ...] = ()
        self.is_held = False

    def next(self, containment: Containment) -> StepPlan:
        """The last plan once more, where making it anew would cost a step of many rows a tenth and change nothing: it
        only decodes, and whoever is open is who it decodes. Otherwise a new one."""
        plan, self._num_standing = self._last, self._num_standing - 1
        is_same = self._num_standing >= 0 and len(self._runs.of_ids(plan.decode)) == len(plan.decode) == len(self._runs)
        return plan if is_same else self.anew(containment)

    def anew(self, containment: Containment) -> StepPlan:
        """Ends who has waited too long; room for whoever it admits is promised."""
        self._prefix_cache.tidy()
        for run in self._runs.in_phase(*WAITING):
            containment.guarded(run, run.look)
        found = [(run, containment.guarded(run, run.shape)) for run in self._runs.unled()]
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
        self._look_at_queue(views, plan, containment)
        return plan

    def _look_at_queue(self, views: Sequence[SequenceView], plan: StepPlan, containment: Containment) -> None:
        now = self._outlet.now_ns()
        waits = self._waits.look(views, self._limits, plan, now)
        for id, reason in waits.changed.items():
            for run in self._runs.of_ids((id,)):
                self._outlet.emit(RequestWaits(run.request_id, reason.value, now))
        for run in self._runs.of_ids(waits.overdue):
            containment.fail(run, self._waits.error())


__all__ = ("StepPlanner",)
