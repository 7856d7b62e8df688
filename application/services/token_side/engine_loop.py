"""The engine's loop over its sequences: each call of `step` plans one step and runs it.

    restore     put back the state of every sequence whose prefix has arrived
    plan        `domain.scheduling.plan_step`: sequences to admit, preempt, decode and prefill within the memory budget
    admit       open a state for each admitted sequence and begin to fetch its prefix
    decode      one forward pass a model, with drafts where they pay; sequences that are preempted decode once more, and
                then release their state
    deliver     the tokens leave before any prompt's chunk begins
    prefill     one turn of chunks
    look ahead  fetch prefixes for the head of the queue

A failure ends the sequence in which it happened with an error; the others continue. DeviceFailed is not contained: it
ends the engine. Compute thread only, except where a property says otherwise.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from application.events import RequestWaits, StepCompleted
from application.ports.compute import LoadedModel
from application.ports.engine import Ended, EngineError, EngineStatus, Submission
from application.ports.token_constraint import ConstraintCompiler
from application.services.faults import described
from application.services.prefix.cache import PrefixCache
from application.services.token_side.constraints import constraint_of
from application.services.token_side.event_batcher import ActivityTracker, EventBatcher
from application.services.token_side.images import EngineImages
from application.services.token_side.loaded_models import LoadedModels
from application.services.token_side.memory_guard import MemoryGuard
from application.services.token_side.pooled_run import PooledRun
from application.services.token_side.sequence_run import SequenceRun
from application.services.token_side.speculation import Speculation
from domain.errors import ComputeFailed, DomainError, ServerUnavailable
from domain.ids import ModelId, RequestId, SequenceId
from domain.memory.pressure import Level
from domain.prefix.prompt_content import AHEAD_CHUNKS
from domain.request.request import FinishReason
from domain.scheduling.plan_step import admission_order, plan_step
from domain.scheduling.queue_waits import QueueWaits
from domain.scheduling.sequence import WAITING, Phase
from domain.scheduling.step_values import SequenceView, StepClock, StepLimits, StepPlan

T = TypeVar("T")

LOOK_AHEAD = 4
"""The number of sequences at the head of the queue whose prefixes are fetched before they are admitted."""


class EngineLoop:
    """The sequences of the engine, from submission to their end, and the models that compute them.

    `models`: the loaded models and the loads under way. `activity`: the present work of the thread. `waits`: the
    reasons why queued sequences wait.
    """

    def __init__(
        self,
        *,
        batcher: EventBatcher,
        prefix_cache: PrefixCache,
        guard: MemoryGuard,
        limits: StepLimits,
        constraints: ConstraintCompiler | None = None,
        waits: QueueWaits | None = None,
    ) -> None:
        """`constraints`: None fails every request that has a grammar. `waits`: ends what waits too long for memory."""
        self.models = LoadedModels(batcher, prefix_cache, constraints, guard)
        self.activity = ActivityTracker(batcher.now_ns)
        self.waits = waits or QueueWaits()
        self.batcher, self.prefix_cache = batcher, prefix_cache
        self.limits, self.guard = limits, guard
        self.images = guard.images = EngineImages(batcher, AHEAD_CHUNKS * limits.grid)
        self._constraints = constraints
        self._step_clock, self._speculation = StepClock(), Speculation(batcher)
        self._runs: dict[SequenceId, SequenceRun] = {}  # in order of arrival
        self._next_id = 0
        self._plan, self._num_standing = StepPlan(), 0
        self._queue: list[SequenceId] = []
        prefix_cache.tiers.confirm()

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Workers call `wake` when something that a sequence or a load waits for is ready."""
        self.models.wake = wake
        self.prefix_cache.wake_with(wake)
        if self._constraints is not None:
            self._constraints.wake_with(wake)

    @property
    def is_busy(self) -> bool:
        """Returns whether any sequence is open."""
        return bool(self._runs)

    @property
    def num_running(self) -> int:
        """The number of sequences that have left the queue."""
        return sum(run.phase not in WAITING for run in self._runs.values())

    @property
    def wakes_soon(self) -> bool:
        """A prefill turn is held for a lookup, or a lookup waits for what has a deadline of milliseconds."""
        return self._plan.is_held or self.prefix_cache.tiers.has_deadline

    def status(self) -> EngineStatus:
        """Returns the status of the loop; the engine that runs the loop adds its own."""
        guard, models, activity, num_running = self.guard, self.models, self.activity, self.num_running
        return EngineStatus(
            is_alive=True,
            is_busy=self.is_busy,
            last_progress_ns=activity.last_progress_ns,
            last_step_ns=activity.last_step_ns,
            num_waiting=len(self._runs) - num_running,  # including preempted ones
            num_running=num_running,
            num_calls=models.num_loading,
            memory=models.memory,
            limits=guard.limits,
            ledger=guard.ledger,
            pressure=guard.pressure,
            waiting_for=self.waits.counts,
            prefill_chunk=self.limits.prefill_budget,
        )

    def step(self) -> bool:
        """Plans and runs one step. Returns False when every sequence waits for work outside this thread."""
        started_ns, num_before = self.batcher.now_ns(), len(self._runs)
        num_restored = self._restore()
        plan = self._next_plan()
        for run in self._open(plan.admit):
            self._guarded(run, run.admit)
        leaving = self._open(plan.preempt)
        for run in leaving:
            run.suspend()
        num_decoded = self._decode(plan)
        self._preempt(leaving)
        if plan.prefill:
            self.batcher.deliver()  # decoded tokens leave before a prompt's chunk begins
        num_prefilled = self._prefill(plan)
        num_looked_up = self._look_ahead()
        if not plan.is_empty:
            num = {"num_prefill_tokens": num_prefilled, "num_decode_tokens": num_decoded}
            self.batcher.emit(StepCompleted(**num, started_ns=started_ns, at_ns=self.batcher.now_ns()))
        self.batcher.deliver()
        is_calm = not (num_decoded or num_prefilled) or not self._runs  # waiting for the device delays nothing
        self.confirm() if is_calm else self.prefix_cache.tiers.confirm()
        has_ended = len(self._runs) < num_before  # a sequence that waited for the ended one may continue
        return bool(num_restored or num_looked_up) or has_ended or not plan.is_empty

    # ---- calls between two steps ----------------------------------------------------------------------------------

    def add(self, submission: Submission) -> None:
        """Queues every open choice of a request. They follow one another as requests with the same prompt do."""
        for choice in submission.open_choices:
            if (run := self._new_run(submission, choice)) is not None:
                self._guarded(run, partial(run.queue_up, self.prefix_cache))

    def cancel(
        self,
        id: RequestId,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.CANCELLED,
        num_tokens: int | None = None,
    ) -> None:
        """Ends a choice, or every choice of a request. Arguments as in the engine port."""
        for run in [run for run in self._runs.values() if run.submission.id == id and choice in (None, run.choice)]:
            has_stopped = reason is not FinishReason.CANCELLED and bool(run.sequence.output_ids)
            phase, why = (Phase.FINISHED, reason) if has_stopped else (Phase.CANCELLED, FinishReason.CANCELLED)
            if num_tokens is not None:
                del run.sequence.output_ids[num_tokens:]
            self._end(run, phase, Ended(run.usage(), why))
        self.batcher.deliver()

    def unload(self, id: ModelId) -> None:
        """Unloads a model; its open sequences end with ServerUnavailable."""
        if id in self.models:
            self.fail_all(ServerUnavailable(f"model {id} was unloaded"), id)
        self.images.drop_model(id)
        self.models.unload(id)
        self.batcher.deliver()

    def unload_all(self) -> None:
        """Unloads every model, while the backend still exists."""
        for id in self.models:
            self.unload(id)

    def fail_all(self, error: DomainError, model: ModelId | None = None) -> None:
        """Ends every sequence, or those of one model, with `error`."""
        for run in tuple(self._runs.values()):
            if model in (None, run.submission.model):
                self._fail(run, error)
        self.batcher.deliver()

    def lose(self, *, is_resumed: bool) -> None:
        """Gives up what the device computed and nothing has verified. Every sequence with a state may be the cause.
        `is_resumed`: another engine resumes what is open, and nothing of its end here is reported."""
        self.batcher.drop_items(and_mute=is_resumed)
        self.batcher.report_computing(tuple(run.request_id for run in self._runs.values() if run.phase not in WAITING))
        self.prefix_cache.tiers.hot.resize(0)

    def confirm(self) -> None:
        """Lets the backend verify what it computed, and the store have what was captured."""
        self.prefix_cache.tiers.confirm(self.models.finish)

    def plan_idle(self) -> None:
        """Plans an empty step while no sequence is open: memory that the last ones held or waited for is counted no
        longer, and the hot tier grows back."""
        self._replan()

    # ---- phases of a step ---------------------------------------------------------------------------------------

    def _restore(self) -> int:
        """Restores every sequence whose prefix has arrived. Returns how many."""
        restoring = self._in_phase(Phase.RESTORING)
        self.activity.begin("restore", restoring)
        if not {run.request_id for run in restoring} <= set(self.batcher.computing):
            self._report_computing(())
        return sum(bool(self._guarded(run, run.try_restore)) for run in restoring)

    def _next_plan(self) -> StepPlan:
        """Returns the last plan if it only decodes, its budget still stands and exactly its sequences are open, because
        replanning costs a step of many rows up to a tenth of its time. Otherwise returns a new plan."""
        self.activity.begin("plan")
        rows, self._num_standing = self._plan.decode, self._num_standing - 1
        # Both lengths: none of the plan's rows has ended, and no sequence has arrived that it does not know.
        is_same = self._num_standing >= 0 and len(self._open(rows)) == len(rows) == len(self._runs)
        return self._plan if is_same else self._replan()

    def _replan(self) -> StepPlan:
        """Plans a step from the sequences, the memory budget and the durations of the last steps. Ends sequences that
        have waited too long for memory."""
        # In this order: a cleared record is none to resume from, the point to resume from decides what a sequence
        # needs, and the needs of all decide the budget.
        self.prefix_cache.tidy()
        self.images.note_clears(self.prefix_cache.num_cleared)
        for run in self._in_phase(*WAITING):
            self._guarded(run, run.cache.refresh)
        # An error ends a sequence and removes it from the dictionary, hence the copy and the second look at `_runs`.
        found = [(run, self._guarded(run, run.shape)) for run in tuple(self._runs.values())]
        runs = [run for run, _ in found if run.id in self._runs]
        shapes = {run.id: shape for run, shape in found if shape is not None}
        views = [run.view() for run in runs]
        budget = self.guard.budget(views, shapes)
        plan = plan_step(views, self.limits, budget, self._step_clock.pace)
        # A plan that admits, preempts or prefills changes what the next one sees, so only pure decoding can stand.
        self._plan, self._num_standing = plan, budget.lasts if plan.only_decodes else 0
        # The admitted hold nothing yet, so no count of memory includes them until the guard's next budget.
        self.prefix_cache.memory.promise(plan.admitted_bytes)
        for run in runs:
            run.num_waited = plan.num_waited.get(run.id, run.num_waited)
        self._queue = [view.id for view in admission_order(views, self.limits)]
        if plan.is_held:
            self._step_clock.held()
        self._report_waits(views, plan)
        return plan

    def _decode(self, plan: StepPlan) -> int:
        """Runs one forward pass a model. Returns the number of tokens."""
        if not plan.decode:
            return 0
        runs, num_tokens, started = self._open(plan.decode), 0, self.batcher.now_ns()
        self.activity.begin("decode", runs)
        self._report_computing(runs)
        for run, result in self._speculation.decode(self.models, runs, may_draft=self.guard.level <= Level.LEAN):
            if isinstance(result, Exception):
                self._contain(run, result)
                continue
            num_before = len(run.sequence.output_ids)
            ended = self._guarded(run, partial(run.take, result))
            num_tokens += len(run.sequence.output_ids) - num_before
            if ended is not None:
                self._end(run, Phase.FINISHED, ended)
        self._step_clock.decoded(self.batcher.now_ns() - started)
        return num_tokens

    def _preempt(self, leaving: Iterable[SequenceRun]) -> None:
        """Releases the state of each and queues it again, charged for its output as part of its prompt."""
        for run in leaving:
            self.activity.begin("preempt", (run,))
            if run.id in self._runs:
                self._guarded(run, partial(run.preempt, self.prefix_cache, is_alone=self.num_running == 1))
            if run.id in self._runs:
                self._guarded(run, partial(run.charge, self.guard))

    def _prefill(self, plan: StepPlan) -> int:
        """Computes the chunks of one turn. Returns the number of tokens."""
        if not plan.prefill:
            return 0
        num_tokens, started = 0, self.batcher.now_ns()
        for chunk in plan.prefill:
            if (run := self._runs.get(chunk.id)) is None:  # an earlier chunk of this step failed
                continue
            self.activity.begin("prefill", (run,))
            self._report_computing((run,))
            num_tokens += self._guarded(run, partial(run.prefill, chunk)) or 0
            if run.id in self._runs and (ended := run.end_of_prompt()) is not None:
                self._end(run, Phase.FINISHED, ended)
        self._step_clock.prefilled(self.batcher.now_ns() - started)
        return num_tokens

    def _look_ahead(self) -> int:
        """Fetches the prefixes of the head of the queue. Returns how many of them this looked up."""
        ahead = [run for run in self._open(self._queue) if run.phase in WAITING][:LOOK_AHEAD]
        self.activity.begin("look up", ahead)
        return sum(bool(self._guarded(run, run.look_ahead)) for run in ahead)

    # ---- reports ------------------------------------------------------------------------------------------------

    def _report_computing(self, runs: Iterable[SequenceRun]) -> None:
        """Reports before they are computed which sequences may crash the engine: these, and those being restored."""
        self.batcher.report_computing(tuple(run.request_id for run in (*runs, *self._in_phase(Phase.RESTORING))))

    def _report_waits(self, views: list[SequenceView], plan: StepPlan) -> None:
        now = self.batcher.now_ns()
        waits = self.waits.update(views, self.limits, plan, now)
        for id, reason in waits.changed.items():
            if (run := self._runs.get(id)) is not None:
                self.batcher.emit(RequestWaits(run.request_id, reason.value, now))
        for run in self._open(waits.overdue):
            self._fail(run, self.waits.error())

    # ---- sequences ----------------------------------------------------------------------------------------------

    def _open(self, ids: Iterable[SequenceId]) -> list[SequenceRun]:
        """Returns those of the sequences that have not ended."""
        return [run for id in ids if (run := self._runs.get(id)) is not None]

    def _in_phase(self, *phases: Phase) -> list[SequenceRun]:
        return [run for run in self._runs.values() if run.phase in phases]

    def _new_run(self, submission: Submission, choice: int) -> SequenceRun | None:
        """Takes in one choice and begins to compile its grammar, which it waits for before it is restored. Returns None
        when that failed and the choice has ended."""
        id, model = SequenceId(self._next_id), self.models.get(submission.model)
        self._next_id += 1
        make = SequenceRun if submission.pooling is None else partial(PooledRun, budget=self.limits.prefill_budget)
        run = self._runs[id] = make(id, submission, choice, self.images, model=model, batcher=self.batcher)
        self._guarded(run, partial(run.charge, self.guard))
        if model is not None and id in self._runs:
            self._guarded(run, partial(self._constrain, run, model))
        if id in self._runs and (ended := run.end_of_prompt()) is not None:  # another engine has reported all of it
            self._end(run, Phase.FINISHED, ended)
        return self._runs.get(id)

    def _constrain(self, run: SequenceRun, model: LoadedModel) -> None:
        run.constraint = constraint_of(run.submission, model.description.vocab_size, self._constraints)

    def _guarded(self, run: SequenceRun, work: Callable[[], T]) -> T | None:
        """Runs one sequence's work. An exception ends that sequence and gives None."""
        try:
            return work()
        except Exception as error:
            self._contain(run, error)
            return None

    def _contain(self, run: SequenceRun, error: Exception) -> None:
        if not isinstance(error, DomainError):
            self.batcher.fault("engine.sequence", error)
            error = ComputeFailed(f"computing this request failed: {described(error)}")
        self._fail(run, error)

    def _fail(self, run: SequenceRun, error: DomainError) -> None:
        self._end(run, Phase.FAILED, Ended(run.usage(), None, EngineError.of(error)))

    def _end(self, run: SequenceRun, phase: Phase, item: Ended) -> None:
        del self._runs[run.id]
        try:
            run.end(phase, item)
        except Exception as error:
            self.batcher.fault("engine.end", error)
            run.release()
            failure = ComputeFailed(f"ending this request failed: {described(error)}")
            self.batcher.send(run.submission.id, run.choice, Ended(item.usage, None, EngineError.of(failure)))
