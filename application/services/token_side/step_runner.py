"""Carries out one step after another on the sequences it holds. Compute thread only.

A failure belongs to the sequence it happened to: that one ends with Failed, the others go on, whichever neighbour
raised. Everything a step produced is delivered at its end, in one batch.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from application.events import ModelLoaded, ModelUnloaded, StepCompleted
from application.ports.compute import ComputeEngine, DecodeResult, LoadedModel
from application.ports.engine import Ended, EngineError, EngineModel, Submission
from application.ports.token_constraint import ConstraintCompiler, TokenConstraint
from application.services.faults import bare, described
from application.services.prefix.cache import PrefixCache
from application.services.token_side.outlet import Outlet
from application.services.token_side.reasoning_constraint import ReasoningConstraint
from application.services.token_side.sequence_run import SequenceRun
from application.services.token_side.step_guard import StepGuard, Unguarded
from domain.errors import ComputeFailed, DomainError, ModelLoadFailed, ServerUnavailable
from domain.ids import ModelId, RequestId, SequenceId
from domain.model_card import LoadOptions, ModelSource
from domain.request import FinishReason
from domain.scheduling import StepLimits, StepPlan, plan_step
from domain.sequence import Phase

T = TypeVar("T")

LOOK_AHEAD = 4
"""Sequences at the head of a full queue whose prefixes are fetched already, while others decode."""

NOT_TOLD = ComputeFailed("the model did not say what became of this sequence")


class StepRunner:
    """Holds every sequence from submission to its end, in order of arrival."""

    def __init__(
        self,
        outlet: Outlet,
        prefix_cache: PrefixCache,
        limits: StepLimits,
        constraints: ConstraintCompiler | None = None,
        guard: StepGuard | None = None,
    ) -> None:
        """Without `constraints` a request with a grammar fails. Without `guard` memory bounds nothing."""
        self._outlet = outlet
        self._prefix_cache = prefix_cache
        self._limits = limits
        self._constraints = constraints
        self._guard = guard or Unguarded()
        self._runs: dict[SequenceId, SequenceRun] = {}
        self._by_request: dict[RequestId, dict[int, SequenceRun]] = {}
        self._models: dict[ModelId, LoadedModel] = {}
        self._next_id = 0
        self.memory: Mapping[str, int] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._runs)

    @property
    def num_running(self) -> int:
        """Sequences past the queue. Any thread; may be a step old."""
        return sum(run.phase is not Phase.QUEUED for run in tuple(self._runs.values()))

    @property
    def num_waiting(self) -> int:
        """As `num_running`, of those in the queue."""
        return len(self._runs) - self.num_running

    def load(self, engine: ComputeEngine, source: ModelSource, options: LoadOptions) -> EngineModel:
        """Raises a bare DomainError, having let go of all that was loaded. A model that is there already stays."""
        started = self._outlet.now_ns()
        if source.id in self._models:
            description = self._models[source.id].description
            return EngineModel(description, self._prefix_cache.note(description))
        found = self._try_load(engine, source, options)
        if isinstance(found, DomainError):  # raised here, where no frame of the attempt is left
            raise found
        description, note = found.description, found.reuse_note
        now = self._outlet.now_ns()
        self._outlet.emit(
            ModelLoaded(
                id=source.id,
                duration_ns=now - started,
                weight_bytes=description.weight_bytes,
                decode_mode=description.decode_mode.value,
                note="; ".join(part for part in (description.decode_note, note) if part),
                at_ns=now,
                active_bytes=self._active_bytes(engine),
            )
        )
        return found

    def _try_load(self, engine: ComputeEngine, source: ModelSource, options: LoadOptions) -> EngineModel | DomainError:
        model: LoadedModel | None = None
        try:
            model = engine.load(source, options, lambda _: None)
            description = model.description
            note = self._prefix_cache.attach(description)
        except Exception as error:
            if model is not None:
                self._outlet.attempt("engine.unload", partial(engine.unload, model))
            if isinstance(error, DomainError):
                return bare(error)
            self._outlet.fault("engine.load", error)
            return ModelLoadFailed(f"{source.id} could not be loaded: {described(error)}")
        self._models[source.id] = model
        self._guard.loaded(source.id, description.weight_bytes)
        if self._constraints is not None:
            self._constraints.attach(source)
        return EngineModel(description, note)

    def unload(self, engine: ComputeEngine, id: ModelId) -> None:
        model = self._models.pop(id, None)
        if model is None:
            return
        for run in [run for run in self._runs.values() if run.submission.model == id]:
            self._fail(run, ServerUnavailable(f"model {id} was unloaded"))
        self._outlet.attempt("cache.detach", partial(self._prefix_cache.detach, id))
        if self._constraints is not None:
            self._constraints.detach(id)
        self._outlet.attempt("engine.unload", partial(engine.unload, model))
        self._guard.unloaded(id)
        self._outlet.emit(ModelUnloaded(id, self._outlet.now_ns(), self._active_bytes(engine)))
        self._outlet.deliver()

    def unload_all(self, engine: ComputeEngine) -> None:
        """The end: let go of every model and its arrays while the backend still stands."""
        for id in tuple(self._models):
            self.unload(engine, id)

    def add(self, submission: Submission) -> None:
        """Take in all choices of a request. The first one leads, if the others can be forked from it."""
        runs = [self._new_run(submission, choice) for choice in range(submission.num_choices)]
        runs = [run for run in runs if self._constrain(run)]
        if not runs:
            return
        leader, others = runs[0], runs[1:]
        self._queue_up(leader)
        leads = others and leader.id in self._runs and self._guarded(leader, leader.can_fork)
        for run in others:
            if leads:
                run.leader = leader
            else:
                self._queue_up(run)

    def _constrain(self, run: SequenceRun) -> bool:
        """Begin to compile its grammar, which it waits for before it is restored, so that nobody else does. False when
        it failed over it."""
        asked = run.submission
        if (model := self._models.get(asked.model)) is not None:
            self._guarded(run, lambda: run.hold_to(self._constraint(asked, model.description.vocab_size)))
        return run.id in self._runs

    def _constraint(self, asked: Submission, vocab_size: int) -> TokenConstraint | None:
        constraint: TokenConstraint | None = None
        if asked.grammar is not None:
            constraint = self._compiler().compile(asked.model, asked.grammar, asked.eos_token_ids)
        if asked.reasoning_budget is not None:
            ends = frozenset[int]() if asked.ignore_eos else asked.eos_token_ids
            constraint = ReasoningConstraint(asked.reasoning_budget, vocab_size, ends, constraint)
        return constraint

    def _compiler(self) -> ConstraintCompiler:
        if self._constraints is None:
            raise ComputeFailed("this engine holds no answer to a grammar")
        return self._constraints

    def cancel(
        self,
        id: RequestId,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.CANCELLED,
        num_tokens: int | None = None,
    ) -> None:
        """See the engine port."""
        for run in [run for run in self._by_request.get(id, {}).values() if choice in (None, run.choice)]:
            run.cut(num_tokens)
            if reason is FinishReason.CANCELLED or run.phase is not Phase.DECODING:
                self._end(run, Phase.CANCELLED, Ended(run.usage(), FinishReason.CANCELLED))
            else:
                self._end(run, Phase.FINISHED, Ended(run.usage(), reason))
        self._outlet.deliver()

    def end_all(self, error: DomainError) -> None:
        for run in tuple(self._runs.values()):
            self._fail(run, error)
        self._outlet.deliver()

    def step(self) -> bool:
        """Plan and run one step. False when everything waits for something outside this thread."""
        started = self._outlet.now_ns()
        num_restored = sum(bool(self._guarded(run, run.try_restore)) for run in self._in_phase(Phase.RESTORING))
        plan = self._plan()
        num_decoded = self._decode(plan.decode)
        num_prefilled = self._prefill(plan)
        for id in plan.admit:
            self._guarded(self._runs[id], self._runs[id].admit)
        for run in self._in_phase(Phase.QUEUED)[:LOOK_AHEAD]:
            self._guarded(run, run.look_ahead)
        if not plan.is_empty:
            now, num_running = self._outlet.now_ns(), self.num_running
            num_waiting = len(self._runs) - num_running
            self._outlet.emit(
                StepCompleted(
                    num_waiting=num_waiting,
                    num_running=num_running,
                    num_prefill_tokens=num_prefilled,
                    num_decode_tokens=num_decoded,
                    started_ns=started,
                    at_ns=now,
                )
            )
        self._outlet.deliver()
        return bool(num_restored) or not plan.is_empty

    def _plan(self) -> StepPlan:
        runs = [run for run in self._runs.values() if run.leader is None]
        views = [run.view() for run in runs]
        shapes = {run.id: run.shape for run in runs if run.shape is not None}
        return plan_step(views, self._limits, self._guard.budget(views, shapes))

    def _new_run(self, submission: Submission, choice: int) -> SequenceRun:
        id, model = SequenceId(self._next_id), self._models.get(submission.model)
        self._next_id += 1
        run = SequenceRun(id, submission, choice, model=model, outlet=self._outlet)
        if run.shape is not None:
            num_prompt = len(submission.prompt.token_ids)
            run.charge_bytes = self._guard.charge_bytes(run.shape, num_prompt, submission.max_new_tokens)
        self._runs[id] = run
        self._by_request.setdefault(submission.id, {})[choice] = run
        return run

    def _queue_up(self, run: SequenceRun) -> None:
        self._guarded(run, partial(run.queue_up, self._prefix_cache))

    def _in_phase(self, phase: Phase) -> list[SequenceRun]:
        """Those that wait for another choice are in none."""
        return [run for run in self._runs.values() if run.phase is phase and run.leader is None]

    def _prefill(self, plan: StepPlan) -> int:
        num_tokens = 0
        for chunk in plan.prefill:
            if (run := self._runs.get(chunk.id)) is not None:  # None: an earlier chunk of this step failed
                if run.ends_prompt(chunk):
                    self._fork(run, self._limits.max_batch - self.num_running - len(plan.admit))
                num_tokens += self._guarded(run, partial(run.prefill, chunk)) or 0
                if chunk.id in self._runs and (finished := run.end_of_prompt()) is not None:
                    self._end(run, Phase.FINISHED, finished)
        return num_tokens

    def _fork(self, leader: SequenceRun, room: int) -> None:
        """Let the choices that wait for this one go on from its state; those that find no room queue up."""
        for run in self._followers(leader):
            if room > 0:
                self._guarded(run, partial(run.fork_from, leader))
                room -= 1
            else:
                self._queue_up(run)

    def _followers(self, leader: SequenceRun) -> list[SequenceRun]:
        choices = self._by_request.get(leader.submission.id, {})
        return [run for run in choices.values() if run.leader is leader]

    def _decode(self, ids: Iterable[SequenceId]) -> int:
        by_model: dict[ModelId, list[SequenceId]] = {}
        for id in ids:
            by_model.setdefault(self._runs[id].submission.model, []).append(id)
        num_tokens = 0
        for model_id, members in by_model.items():
            try:
                told = {result.id: result for result in self._models[model_id].decode(members)}
            except Exception as error:  # the port promises errors by row; without one nothing of the batch is safe
                for id in members:
                    self._contain(self._runs[id], error)
                continue
            for id in members:
                run, result = self._runs[id], told.get(id) or DecodeResult(id, error=NOT_TOLD)
                if result.error is not None:
                    self._fail(run, result.error)
                    continue
                num_before = len(run.sequence.output_ids)
                finished = self._guarded(run, partial(run.take, result))
                num_tokens += len(run.sequence.output_ids) - num_before
                if finished is not None:
                    self._end(run, Phase.FINISHED, finished)
        return num_tokens

    def _guarded(self, run: SequenceRun, work: Callable[[], T]) -> T | None:
        """Run one sequence's work; an exception ends that sequence and gives None."""
        try:
            return work()
        except Exception as error:
            self._contain(run, error)
            return None

    def _contain(self, run: SequenceRun, error: Exception) -> None:
        if not isinstance(error, DomainError):
            self._outlet.fault("engine.sequence", error)
            error = ComputeFailed(f"computing this request failed: {described(error)}")
        self._fail(run, error)

    def _fail(self, run: SequenceRun, error: DomainError) -> None:
        self._end(run, Phase.FAILED, Ended(run.usage(), None, EngineError.of(error)))

    def _end(self, run: SequenceRun, phase: Phase, item: Ended) -> None:
        id = run.submission.id
        del self._runs[run.id]
        choices = self._by_request[id]
        del choices[run.choice]
        try:
            run.end(phase, item)
        except Exception as error:
            self._outlet.fault("engine.end", error)
            run.release()
            failure = ComputeFailed(f"ending this request failed: {described(error)}")
            self._outlet.send(id, run.choice, Ended(item.usage, None, EngineError.of(failure)))
        for follower in self._followers(run):
            self._queue_up(follower)
        if not choices:
            self._by_request.pop(id, None)

    def _active_bytes(self, engine: ComputeEngine) -> int:
        self.memory = self._outlet.attempt("engine.memory", lambda: dict(engine.memory())) or {}
        return self.memory.get("active", 0)


__all__ = ("StepRunner",)
