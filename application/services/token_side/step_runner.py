"""Carries out one step after another on the sequences it holds. Compute thread only.

A failure belongs to the sequence it happened to: that one ends with Failed, the others go on, whichever neighbour
raised. What a step decoded is delivered before it prefills, everything else at its end.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from application.events import StepCompleted
from application.ports.compute import ComputeEngine, DecodeResult, LoadedModel
from application.ports.engine import Ended, EngineError, EngineModel, LoadProgress, Submission
from application.ports.token_constraint import ConstraintCompiler
from application.services.faults import described
from application.services.memory_ledger import Lease, Purpose
from application.services.prefix.cache import PrefixCache
from application.services.token_side.constraints import constraint_of
from application.services.token_side.event_batcher import EventBatcher, Pulse
from application.services.token_side.memory_guard import StepGuard, Unguarded
from application.services.token_side.model_loads import LoadedModels
from application.services.token_side.run_table import RunTable
from application.services.token_side.sequence_run import SequenceRun
from application.services.token_side.step_planner import QueueWaits, StepClock, StepPlanner
from domain.errors import ComputeFailed, DomainError, ServerUnavailable
from domain.ids import ModelId, RequestId, SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.request import FinishReason
from domain.scheduling.plan_step import StepLimits, StepPlan
from domain.scheduling.sequence import WAITING, Phase

T = TypeVar("T")

LOOK_AHEAD = 4
"""Sequences at the head of a full queue whose prefixes are fetched already, while others decode."""


class StepRunner:
    """The models that are loaded, and the sequences they compute."""

    def __init__(
        self,
        batcher: EventBatcher,
        prefix_cache: PrefixCache,
        limits: StepLimits,
        constraints: ConstraintCompiler | None = None,
        guard: StepGuard | None = None,
        waits: QueueWaits | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        """Without `constraints` a request with a grammar fails. Without `guard` memory bounds nothing. `waits`: ends
        what waits for memory too long. `pulse`: where to say what is being done."""
        self._batcher = batcher
        self._prefix_cache = prefix_cache
        self._limits = limits
        self._constraints = constraints
        self._guard = guard or Unguarded()
        self._pulse = pulse or Pulse(batcher.now_ns)
        self._runs = RunTable()
        self._step_clock = StepClock()
        self._models = LoadedModels(batcher, prefix_cache, constraints, self._guard)
        self._next_id = 0
        self._planner = StepPlanner(
            self._runs,
            limits,
            self._guard,
            waits or QueueWaits(),
            self._step_clock,
            batcher=batcher,
            prefix_cache=prefix_cache,
            containment=self,
        )

    @property
    def is_busy(self) -> bool:
        return bool(self._runs)

    @property
    def num_running(self) -> int:
        """Sequences past the queue. Any thread; may be a step old."""
        return self._runs.num_running

    @property
    def num_waiting(self) -> int:
        """As `num_running`, of those in the queue, preempted ones too."""
        return len(self._runs) - self._runs.num_running

    @property
    def is_held(self) -> bool:
        """The next turn waits for a lookup."""
        return self._planner.is_held

    @property
    def loading(self) -> LoadProgress | None:
        """As in EngineStatus. Any thread."""
        return self._models.loading

    @property
    def memory(self) -> Mapping[str, int]:
        """See `LoadedModels`."""
        return self._models.memory

    def load(
        self, engine: ComputeEngine, source: ModelSource, options: LoadOptions
    ) -> Generator[Future[Any] | None, None, EngineModel]:
        """See `LoadedModels.load`; `step` may be called between two pieces."""
        return self._models.load(engine, source, options)

    def unload(self, engine: ComputeEngine, id: ModelId) -> None:
        """What it still computes fails."""
        for run in [run for run in self._runs if run.submission.model == id and id in self._models]:
            self.fail(run, ServerUnavailable(f"model {id} was unloaded"))
        self._models.unload(engine, id)
        self._batcher.deliver()

    def unload_all(self, engine: ComputeEngine) -> None:
        """The end: let go of every model and its arrays while the backend still stands."""
        for id in self._models:
            self.unload(engine, id)

    def add(self, submission: Submission) -> None:
        """Take in all choices of a request. The first one leads, if the others can be forked from it, and have not been
        on their own already."""
        runs = [self._new_run(submission, choice) for choice in submission.open_choices]
        runs = [run for run in runs if run in self._runs and self._constrain(run)]
        if not runs:
            return
        leader, others = runs[0], runs[1:]
        self._queue_up(leader)
        are_new = all(run.phase is Phase.QUEUED for run in others) and not leader.sequence.output_ids
        leads = others and are_new and leader in self._runs and self.guarded(leader, leader.can_fork)
        for run in others:
            if leads:
                run.leader = leader
            else:
                self._queue_up(run)

    def _constrain(self, run: SequenceRun) -> bool:
        """Begin to compile its grammar, which it waits for before it is restored, so that nobody else does. False when
        it failed over it."""
        if (model := self._models.get(run.submission.model)) is not None:
            vocab_size = model.description.vocab_size
            self.guarded(run, lambda: run.constrain(constraint_of(run.submission, vocab_size, self._constraints)))
        return run in self._runs

    def cancel(
        self,
        id: RequestId,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.CANCELLED,
        num_tokens: int | None = None,
    ) -> None:
        """See the engine port."""
        for run in [run for run in self._runs.choices(id) if choice in (None, run.choice)]:
            has_stopped = reason is not FinishReason.CANCELLED and bool(run.sequence.output_ids)
            phase, why = (Phase.FINISHED, reason) if has_stopped else (Phase.CANCELLED, FinishReason.CANCELLED)
            run.cut(num_tokens)
            self._end(run, phase, Ended(run.usage(), why))
        self._batcher.deliver()

    def end_all(self, error: DomainError) -> None:
        for run in self._runs:
            self.fail(run, error)
        self._batcher.deliver()

    def step(self) -> bool:
        """Plan and run one step. False when everything waits for something outside this thread."""
        started_ns, num_before = self._batcher.now_ns(), len(self._runs)
        num_moved = self._restore()
        self._pulse.begin("plan")
        plan = self._planner.next()
        for run in self._runs.of_ids(plan.admit):
            self.guarded(run, run.admit)
        leaving = self._runs.of_ids(plan.preempt)
        for run in leaving:
            run.suspend()
        num_decoded = self._decode(plan)
        self._preempt(leaving)
        if plan.prefill:
            self._batcher.deliver()
        num_prefilled = self._prefill(plan)
        num_moved += self._look_ahead()
        if not plan.is_empty:
            self._report_step(started_ns, num_prefilled, num_decoded)
        self._batcher.deliver()
        has_ended = len(self._runs) < num_before  # what waited behind it may go on
        return num_moved > 0 or has_ended or not plan.is_empty

    def rest(self) -> None:
        """Nothing runs. A plan for nobody: what the last ones held or waited for is counted no more, no turn is held
        for them, and what was given back for them comes back."""
        self._planner.anew()

    def guarded(self, run: SequenceRun, work: Callable[[], T]) -> T | None:
        """Run one sequence's work; an exception ends that sequence and gives None."""
        try:
            return work()
        except Exception as error:
            self._contain(run, error)
            return None

    def fail(self, run: SequenceRun, error: DomainError) -> None:
        self._end(run, Phase.FAILED, Ended(run.usage(), None, EngineError.of(error)))

    def _computes(self, runs: Iterable[SequenceRun]) -> None:
        """These, and what is being restored, may end the engine now."""
        self._batcher.computes(tuple(run.request_id for run in (*runs, *self._runs.in_phase(Phase.RESTORING))))

    def _restore(self) -> int:
        """Put every state back that has arrived; returns how many."""
        restoring = self._runs.in_phase(Phase.RESTORING)
        self._pulse.begin("restore", restoring)
        if not {run.request_id for run in restoring} <= set(self._batcher.computing):
            self._computes(())
        return sum(bool(self.guarded(run, run.try_restore)) for run in restoring)

    def _look_ahead(self) -> int:
        """Have the prefixes of the next in the queue fetched; returns how many were looked up by this."""
        ahead = [run for run in self._runs.of_ids(self._planner.queue) if run.phase in WAITING][:LOOK_AHEAD]
        self._pulse.begin("look up", ahead)
        return sum(bool(self.guarded(run, run.look_ahead)) for run in ahead)

    def _report_step(self, started_ns: int, num_prefilled: int, num_decoded: int) -> None:
        num_running = self._runs.num_running
        self._batcher.emit(
            StepCompleted(
                num_waiting=len(self._runs) - num_running,
                num_running=num_running,
                num_prefill_tokens=num_prefilled,
                num_decode_tokens=num_decoded,
                started_ns=started_ns,
                at_ns=self._batcher.now_ns(),
            )
        )

    def _new_run(self, submission: Submission, choice: int) -> SequenceRun:
        id, model = SequenceId(self._next_id), self._models.get(submission.model)
        self._next_id += 1
        run = SequenceRun(id, submission, choice, model=model, batcher=self._batcher)
        self._runs.add(run)
        self.guarded(run, partial(self._charge, run))
        return run

    def _charge(self, run: SequenceRun) -> None:
        if (shape := run.shape()) is not None:
            num_new = run.submission.max_new_tokens - len(run.sequence.output_ids)
            run.charge_bytes = self._guard.charge_bytes(shape, len(run.sequence.fed_ids), num_new)

    def _queue_up(self, run: SequenceRun) -> None:
        self.guarded(run, partial(run.queue_up, self._prefix_cache))

    def _preempt(self, leaving: Iterable[SequenceRun]) -> None:
        for run in leaving:
            self._pulse.begin("preempt", (run,))
            if run in self._runs:
                self.guarded(run, partial(run.preempt, self._prefix_cache, is_alone=self.num_running == 1))
            if run in self._runs:
                self.guarded(run, partial(self._charge, run))

    def _prefill(self, plan: StepPlan) -> int:
        if not plan.prefill:
            return 0
        num_tokens, started = 0, self._batcher.now_ns()
        for chunk in plan.prefill:
            for run in self._runs.of_ids((chunk.id,)):  # none: an earlier chunk of this step failed
                self._pulse.begin("prefill", (run,))
                self._computes((run,))
                if run.ends_prompt(chunk):
                    self._fork(run)
                num_tokens += self.guarded(run, partial(run.prefill, chunk)) or 0
                if run in self._runs and (finished := run.end_of_prompt()) is not None:
                    self._end(run, Phase.FINISHED, finished)
        self._step_clock.prefilled(self._batcher.now_ns() - started)
        return num_tokens

    def _fork(self, leader: SequenceRun) -> None:
        """Let the choices that wait for this one go on from its state; those that find no room queue up."""
        for run in self._runs.followers(leader):
            has_place, memory = self.num_running < self._limits.max_batch, self._prefix_cache.memory
            if has_place and isinstance(memory.reserve(Purpose.SEQUENCES, run.charge_bytes), Lease):
                self.guarded(run, partial(run.fork_from, leader))
            else:
                self._queue_up(run)

    def _decode(self, plan: StepPlan) -> int:
        num_tokens, started = 0, self._batcher.now_ns()
        decoding = self._runs.of_ids(plan.decode)
        if decoding:
            self._pulse.begin("decode", decoding)
            self._computes(decoding)
        for run, result in decode_all(self._models, decoding):
            if isinstance(result, Exception):
                self._contain(run, result)
                continue
            if result.error is not None:
                self.fail(run, result.error)
                continue
            num_before = len(run.sequence.output_ids)
            finished = self.guarded(run, partial(run.take, result))
            num_tokens += len(run.sequence.output_ids) - num_before
            if finished is not None:
                self._end(run, Phase.FINISHED, finished)
        if plan.decode:
            self._step_clock.decoded(self._batcher.now_ns() - started)
        return num_tokens

    def _contain(self, run: SequenceRun, error: Exception) -> None:
        if not isinstance(error, DomainError):
            self._batcher.fault("engine.sequence", error)
            error = ComputeFailed(f"computing this request failed: {described(error)}")
        self.fail(run, error)

    def _end(self, run: SequenceRun, phase: Phase, item: Ended) -> None:
        if run not in self._runs:  # it failed when its leader, which was ended before it, left it to itself
            return
        self._runs.remove(run)
        try:
            run.end(phase, item)
        except Exception as error:
            self._batcher.fault("engine.end", error)
            run.release()
            failure = ComputeFailed(f"ending this request failed: {described(error)}")
            self._batcher.send(run.submission.id, run.choice, Ended(item.usage, None, EngineError.of(failure)))
        for follower in self._runs.followers(run):
            self._queue_up(follower)


NOT_TOLD = ComputeFailed("the model did not say what became of this sequence")


def decode_all(
    models: Mapping[ModelId, LoadedModel], runs: Iterable[SequenceRun]
) -> Iterator[tuple[SequenceRun, DecodeResult | Exception]]:
    """Model by model. An exception: what the port does not promise, and nothing of that batch is safe then."""
    by_model: dict[ModelId, dict[SequenceId, SequenceRun]] = {}
    for run in runs:
        by_model.setdefault(run.submission.model, {})[run.id] = run
    for model_id, members in by_model.items():
        try:
            told = {result.id: result for result in models[model_id].decode(list(members))}
        except Exception as error:
            yield from ((run, error) for run in members.values())
            continue
        for id, run in members.items():
            yield run, told.get(id) or DecodeResult(id, error=NOT_TOLD)
