"""Carries out one step after another on the sequences it holds. Compute thread only.

A failure belongs to the sequence it happened to: that one ends with Failed, the others go on. Everything a step
produced is delivered at its end, in one batch.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from application.events import FaultObserved, ModelLoaded, ModelUnloaded, StepCompleted
from application.ports.compute import ComputeEngine, LoadedModel
from application.services.outlet import Outlet
from application.services.prefix.cache import PrefixCache
from application.services.sequence_run import SequenceRun, Submission
from domain.errors import ComputeFailed, DomainError, ServerUnavailable
from domain.ids import ModelId, RequestId, SequenceId
from domain.model_card import ModelDescription, ModelSource
from domain.request import FinishReason
from domain.scheduling import StepLimits, StepPlan, plan_step
from domain.sequence import Phase
from domain.stream import Failed, Finished

T = TypeVar("T")

LOOK_AHEAD = 4
"""Sequences at the head of a full queue whose prefixes are fetched already, while others decode."""


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
        started = self._outlet.now_ns()
        model = engine.load(source, lambda _: None)
        self._models[source.id] = model
        described, now = model.description, self._outlet.now_ns()
        notes = [described.decode_note, self._prefix_cache.attach(described)]
        self._outlet.emit(
            ModelLoaded(
                source.id,
                now - started,
                described.weight_bytes,
                described.decode_mode.value,
                "; ".join(note for note in notes if note),
                now,
                engine.memory().get("active", 0),
            )
        )
        return described

    def unload(self, engine: ComputeEngine, id: ModelId) -> None:
        model = self._models.pop(id, None)
        if model is None:
            return
        for run in [run for run in self._runs.values() if run.submission.model == id]:
            self._fail(run, ServerUnavailable(f"model {id} was unloaded"))
        self._prefix_cache.detach(id)
        engine.unload(model)
        self._outlet.emit(ModelUnloaded(id, self._outlet.now_ns(), engine.memory().get("active", 0)))
        self._outlet.deliver()

    def unload_all(self, engine: ComputeEngine) -> None:
        """The end: let go of every model and its arrays while the backend still stands."""
        for id in tuple(self._models):
            self.unload(engine, id)

    def add(self, submission: Submission) -> None:
        id = SequenceId(self._next_id)
        self._next_id += 1
        self._runs[id] = SequenceRun(id, submission, self._models.get(submission.model), self._outlet)
        self._by_request[submission.request.id] = id

    def cancel(self, id: RequestId) -> None:
        if (sequence_id := self._by_request.get(id)) is not None:
            run = self._runs[sequence_id]
            self._end(run, Phase.CANCELLED, Finished(FinishReason.CANCELLED, run.usage()))
            self._outlet.deliver()

    def end_all(self, error: DomainError) -> None:
        for run in tuple(self._runs.values()):
            self._fail(run, error)
        self._outlet.deliver()

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
        self._outlet.deliver()
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
                results = self._models[model_id].decode(members)
            except Exception as error:  # the port promises errors by row; without one nothing of the batch is safe
                for id in members:
                    self._contain(self._runs[id], error)
                continue
            for result in results:
                run = self._runs[result.id]
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
            message = f"{type(error).__name__}: {error}"
            self._outlet.emit(FaultObserved("engine.sequence", message, self._outlet.now_ns()))
            error = ComputeFailed(f"computing this request failed: {message}")
        self._fail(run, error)

    def _fail(self, run: SequenceRun, error: DomainError) -> None:
        self._end(run, Phase.FAILED, Failed(error, run.usage()))

    def _end(self, run: SequenceRun, phase: Phase, item: Finished | Failed) -> None:
        if run.phase is Phase.QUEUED:
            self._on_left_queue()
        del self._runs[run.id]
        del self._by_request[run.sequence.request.id]
        run.end(phase, item)


__all__ = ("StepRunner",)
