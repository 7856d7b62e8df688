"""Carries out one step after another on the sequences it holds. Compute thread only.

A failure belongs to the sequence it happened to: that one ends with Failed, the others go on, whichever neighbour
raised. Everything a step produced is delivered at its end, in one batch.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from application.events import ModelLoaded, ModelUnloaded, StepCompleted
from application.ports.compute import ComputeEngine, DecodeResult, LoadedModel
from application.services.faults import bare, described
from application.services.prefix.cache import PrefixCache
from application.services.token_side.outlet import Outlet
from application.services.token_side.sequence_run import SequenceRun, Submission
from domain.errors import ComputeFailed, DomainError, ModelLoadFailed, ServerUnavailable
from domain.ids import ModelId, RequestId, SequenceId
from domain.model_card import ModelDescription, ModelSource
from domain.request import FinishReason
from domain.scheduling import StepLimits, StepPlan, plan_step
from domain.sequence import Phase
from domain.stream import Failed, Finished

T = TypeVar("T")

LOOK_AHEAD = 4
"""Sequences at the head of a full queue whose prefixes are fetched already, while others decode."""

NOT_TOLD = ComputeFailed("the model did not say what became of this sequence")


class StepRunner:
    """Holds every sequence from submission to its end, in order of arrival."""

    def __init__(
        self, outlet: Outlet, prefix_cache: PrefixCache, limits: StepLimits, on_left_queue: Callable[[], None]
    ) -> None:
        """`on_left_queue` is called once for every submission, when it is admitted or ends before that."""
        self._outlet = outlet
        self._prefix_cache = prefix_cache
        self._limits = limits
        self._on_left_queue = on_left_queue
        self._runs: dict[SequenceId, SequenceRun] = {}
        self._by_request: dict[RequestId, SequenceId] = {}
        self._models: dict[ModelId, LoadedModel] = {}
        self._next_id = 0

    @property
    def is_busy(self) -> bool:
        return bool(self._runs)

    @property
    def num_running(self) -> int:
        """Sequences past the queue. Any thread; may be a step old."""
        return sum(run.phase is not Phase.QUEUED for run in tuple(self._runs.values()))

    def load(self, engine: ComputeEngine, source: ModelSource) -> ModelDescription:
        """Raises a bare DomainError, having let go of all that was loaded. A model that is there already stays."""
        started = self._outlet.now_ns()
        if source.id in self._models:
            return self._models[source.id].description
        found = self._try_load(engine, source)
        if isinstance(found, DomainError):  # raised here, where no frame of the attempt is left
            raise found
        description, note = found
        now = self._outlet.now_ns()
        self._outlet.emit(
            ModelLoaded(
                source.id,
                now - started,
                description.weight_bytes,
                description.decode_mode.value,
                "; ".join(part for part in (description.decode_note, note) if part),
                now,
                self._active_bytes(engine),
            )
        )
        return description

    def _try_load(self, engine: ComputeEngine, source: ModelSource) -> tuple[ModelDescription, str] | DomainError:
        model: LoadedModel | None = None
        try:
            model = engine.load(source, lambda _: None)
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
        return description, note

    def unload(self, engine: ComputeEngine, id: ModelId) -> None:
        model = self._models.pop(id, None)
        if model is None:
            return
        for run in [run for run in self._runs.values() if run.submission.model == id]:
            self._fail(run, ServerUnavailable(f"model {id} was unloaded"))
        self._outlet.attempt("cache.detach", partial(self._prefix_cache.detach, id))
        self._outlet.attempt("engine.unload", partial(engine.unload, model))
        self._outlet.emit(ModelUnloaded(id, self._outlet.now_ns(), self._active_bytes(engine)))
        self._deliver()

    def unload_all(self, engine: ComputeEngine) -> None:
        """The end: let go of every model and its arrays while the backend still stands."""
        for id in tuple(self._models):
            self.unload(engine, id)

    def add(self, submission: Submission) -> None:
        id, request_id = SequenceId(self._next_id), submission.request.id
        self._next_id += 1
        try:
            run = SequenceRun(id, submission, self._models.get(submission.model), self._outlet)
        except Exception as error:
            self._outlet.fault("engine.add", error)
            self._on_left_queue()
            self._outlet.send(request_id, Failed(ComputeFailed(f"the request was not taken: {described(error)}")))
            self._deliver()
            return
        self._runs[id] = run
        self._by_request[request_id] = id

    def cancel(self, id: RequestId) -> None:
        if (sequence_id := self._by_request.get(id)) is not None:
            run = self._runs[sequence_id]
            self._end(run, Phase.CANCELLED, Finished(FinishReason.CANCELLED, run.usage()))
            self._deliver()

    def end_all(self, error: DomainError) -> None:
        for run in tuple(self._runs.values()):
            self._fail(run, error)
        self._deliver()

    def step(self) -> bool:
        """Plan and run one step. False when everything waits for something outside this thread."""
        started = self._outlet.now_ns()
        num_restored = sum(bool(self._guarded(run, run.try_restore)) for run in self._in_phase(Phase.RESTORING))
        plan = plan_step([run.view() for run in self._runs.values()], self._limits)
        num_decoded = self._decode(plan.decode)
        num_prefilled = self._prefill(plan)
        for id in plan.admit:
            run = self._runs[id]
            self._on_left_queue()
            self._guarded(run, partial(run.admit, self._prefix_cache))
        for run in self._in_phase(Phase.QUEUED)[:LOOK_AHEAD]:
            self._guarded(run, partial(run.look_up, self._prefix_cache))
        num_running = self.num_running
        if not plan.is_empty:
            now = self._outlet.now_ns()
            num_waiting = len(self._runs) - num_running
            self._outlet.emit(StepCompleted(num_waiting, num_running, num_prefilled, num_decoded, started, now))
        self._deliver()
        return bool(num_restored) or not plan.is_empty

    def _in_phase(self, phase: Phase) -> list[SequenceRun]:
        return [run for run in self._runs.values() if run.phase is phase]

    def _prefill(self, plan: StepPlan) -> int:
        num_tokens = 0
        for chunk in plan.prefill:
            if (run := self._runs.get(chunk.id)) is not None:  # None: an earlier chunk of this step failed
                num_tokens += self._guarded(run, partial(run.prefill, chunk)) or 0
        return num_tokens

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
                num_tokens += 1
                finished = self._guarded(run, partial(run.take, result))
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
        self._end(run, Phase.FAILED, Failed(bare(error), run.usage()))

    def _end(self, run: SequenceRun, phase: Phase, item: Finished | Failed) -> None:
        if run.phase is Phase.QUEUED:
            self._on_left_queue()
        del self._runs[run.id]
        id = run.sequence.request.id
        del self._by_request[id]
        try:
            run.end(phase, item)
        except Exception as error:
            self._outlet.fault("engine.end", error)
            run.release()
            self._outlet.send(id, Failed(ComputeFailed(f"ending this request failed: {described(error)}")))

    def _deliver(self) -> None:
        lost = self._outlet.deliver()
        error = ComputeFailed("a part of the answer could not be delivered")
        for id in lost:
            if (sequence_id := self._by_request.get(id)) is not None:
                self._fail(self._runs[sequence_id], error)
            else:
                self._outlet.send(id, Failed(error))
        if lost:  # once more, and no further: who does not hear it now is told nothing any more
            self._outlet.deliver()

    def _active_bytes(self, engine: ComputeEngine) -> int:
        memory = self._outlet.attempt("engine.memory", engine.memory)
        return memory.get("active", 0) if memory is not None else 0


__all__ = ("StepRunner",)
