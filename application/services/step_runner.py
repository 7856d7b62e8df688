"""Carries out one step after another on the sequences it holds. Compute thread only.

A failure belongs to the sequence it happened to: that one ends with Failed, the others go on. Everything a step
produced is delivered at its end, in one batch.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from application.events import (
    DecodeStarted,
    FaultObserved,
    FirstToken,
    ModelLoaded,
    ModelUnloaded,
    PrefillChunkComputed,
    RequestAdmitted,
    RequestEnded,
    RequestQueued,
    StepCompleted,
)
from application.ports.clock import Clock
from application.ports.compute import ComputeEngine, DecodeResult, DecodeStart, LoadedModel
from application.ports.event_sink import EventSink
from application.ports.output_sink import OutputSink
from application.ports.tokenizer import Detokenizer, EncodedPrompt
from application.services.output_pipeline import OutputPipeline
from domain.errors import ComputeFailed, DomainError, ServerUnavailable
from domain.ids import ModelId, RequestId, SequenceId
from domain.model_card import ModelDescription, ModelSource
from domain.request import FinishReason, GenerationRequest, Usage
from domain.scheduling import PrefillChunk, SequenceView, StepLimits, plan_step
from domain.sequence import Phase, Sequence
from domain.stream import Admitted, Failed, Finished, PrefillProgress, StreamItem


@dataclass(frozen=True, slots=True)
class Submission:
    """A request whose prompt is encoded and checked. `seed` is always set."""

    request: GenerationRequest
    prompt: EncodedPrompt
    max_new_tokens: int
    seed: int
    detokenizer: Detokenizer
    model: ModelId


@dataclass(slots=True)
class _Running:
    sequence: Sequence
    submission: Submission
    pipeline: OutputPipeline
    num_reused: int = 0

    def usage(self) -> Usage:
        return Usage(len(self.sequence.prompt_ids), len(self.sequence.output_ids), self.num_reused)


class StepRunner:
    """Holds every sequence from submission to its end, in order of arrival."""

    def __init__(
        self,
        sink: OutputSink,
        events: EventSink,
        clock: Clock,
        limits: StepLimits,
        on_left_queue: Callable[[], None],
    ) -> None:
        """`on_left_queue` is called once for every submission, when it is admitted or ends before that."""
        self._sink = sink
        self._events = events
        self._clock = clock
        self._limits = limits
        self._on_left_queue = on_left_queue
        self._running: dict[SequenceId, _Running] = {}
        self._by_request: dict[RequestId, SequenceId] = {}
        self._models: dict[ModelId, LoadedModel] = {}
        self._outbox: list[tuple[RequestId, StreamItem]] = []
        self._next_id = 0

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    @property
    def num_running(self) -> int:
        """Sequences past the queue. Any thread; may be a step old."""
        return sum(running.sequence.phase is not Phase.QUEUED for running in tuple(self._running.values()))

    def load(self, engine: ComputeEngine, source: ModelSource) -> ModelDescription:
        started = self._clock.now_ns()
        model = engine.load(source, lambda _: None)
        self._models[source.id] = model
        described = model.description
        now = self._clock.now_ns()
        self._events.emit(
            ModelLoaded(
                source.id,
                now - started,
                described.weight_bytes,
                described.decode_mode.value,
                described.decode_note,
                now,
            )
        )
        return described

    def unload(self, engine: ComputeEngine, id: ModelId) -> None:
        model = self._models.pop(id, None)
        if model is None:
            return
        for running in [running for running in self._running.values() if running.submission.model == id]:
            self._fail(running, ServerUnavailable(f"model {id} was unloaded"))
        engine.unload(model)
        self._events.emit(ModelUnloaded(id, self._clock.now_ns()))
        self._deliver()

    def add(self, submission: Submission) -> None:
        id = SequenceId(self._next_id)
        self._next_id += 1
        request, prompt_ids = submission.request, submission.prompt.token_ids
        model = self._models.get(submission.model)
        eos = model.description.eos_token_ids if model else frozenset[int]()
        pipeline = OutputPipeline(submission.detokenizer, eos, request.stop, submission.max_new_tokens)
        sequence = Sequence(id, request, prompt_ids, submission.max_new_tokens)
        self._running[id] = _Running(sequence, submission, pipeline)
        self._by_request[request.id] = id
        self._events.emit(RequestQueued(request, submission.model, len(prompt_ids), self._clock.now_ns()))

    def cancel(self, id: RequestId) -> None:
        if (sequence_id := self._by_request.get(id)) is not None:
            running = self._running[sequence_id]
            self._end(running, Phase.CANCELLED, Finished(FinishReason.CANCELLED, running.usage()))
            self._deliver()

    def end_all(self, error: DomainError) -> None:
        for running in tuple(self._running.values()):
            self._fail(running, error)
        self._deliver()

    def step(self) -> None:
        """Plan and run one step."""
        started = self._clock.now_ns()
        plan = plan_step([self._view(running) for running in self._running.values()], self._limits)
        num_decoded = self._decode(plan.decode)
        num_prefilled = sum(self._prefill(chunk) for chunk in plan.prefill)
        for id in plan.admit:
            self._admit(self._running[id])
        num_running = self.num_running
        self._events.emit(
            StepCompleted(
                len(self._running) - num_running, num_running, num_prefilled, num_decoded, started, self._clock.now_ns()
            )
        )
        self._deliver()

    def _view(self, running: _Running) -> SequenceView:
        sequence = running.sequence
        return SequenceView(sequence.id, sequence.phase, sequence.num_computed, sequence.prefill_end)

    def _admit(self, running: _Running) -> None:
        model = self._models.get(running.submission.model)
        if model is None:
            self._fail(running, ServerUnavailable(f"model {running.submission.model} was unloaded"))
            return
        sequence = running.sequence
        self._on_left_queue()
        sequence.enter(Phase.PREFILLING)
        try:
            model.open(sequence.id)
        except Exception as error:
            self._contain(running, error)
            return
        self._events.emit(RequestAdmitted(sequence.request.id, running.num_reused, self._clock.now_ns()))
        self._send(running, Admitted(len(sequence.prompt_ids), running.num_reused))

    def _prefill(self, chunk: PrefillChunk) -> int:
        running = self._running.get(chunk.id)
        if running is None:  # an earlier chunk of this step failed
            return 0
        sequence, model = running.sequence, self._models[running.submission.model]
        started = self._clock.now_ns()
        try:
            if chunk.end > chunk.start:
                model.prefill(sequence.id, sequence.prompt_ids[chunk.start : chunk.end])
                now = self._clock.now_ns()
                self._events.emit(PrefillChunkComputed(sequence.request.id, chunk.start, chunk.end, started, now))
                self._send(running, PrefillProgress(chunk.end, len(sequence.prompt_ids)))
            sequence.num_computed = chunk.end
            if chunk.end == sequence.prefill_end:
                self._start_decode(running, model)
        except Exception as error:
            self._contain(running, error)
            return 0
        return chunk.end - chunk.start

    def _start_decode(self, running: _Running, model: LoadedModel) -> None:
        sequence, request = running.sequence, running.sequence.request
        prompt = sequence.prompt_ids
        start = DecodeStart(prompt[-1], prompt, request.sampling, running.submission.seed, request.stop.min_tokens)
        model.start_decode(sequence.id, start)
        sequence.enter(Phase.DECODING)
        self._events.emit(DecodeStarted(request.id, self._clock.now_ns()))

    def _decode(self, ids: Iterable[SequenceId]) -> int:
        by_model: dict[ModelId, list[SequenceId]] = {}
        for id in ids:
            by_model.setdefault(self._running[id].submission.model, []).append(id)
        num_tokens = 0
        for model_id, members in by_model.items():
            try:
                results = self._models[model_id].decode(members)
            except Exception as error:  # the port promises errors by row; without one nothing of the batch is safe
                for id in members:
                    self._contain(self._running[id], error)
                continue
            for result in results:
                num_tokens += self._take_token(result)
        return num_tokens

    def _take_token(self, result: DecodeResult) -> int:
        running = self._running[result.id]
        if result.error is not None:
            self._fail(running, result.error)
            return 0
        sequence = running.sequence
        try:
            step = running.pipeline.feed(result.token_id, result.logprob)
        except Exception as error:
            self._contain(running, error)
            return 0
        sequence.output_ids.append(result.token_id)
        if len(sequence.output_ids) == 1:
            self._events.emit(FirstToken(sequence.request.id, self._clock.now_ns()))
        self._send(running, step.delta)
        if step.reason is not None:
            self._end(running, Phase.FINISHED, Finished(step.reason, running.usage(), step.stop_text))
        return 1

    def _contain(self, running: _Running, error: Exception) -> None:
        """Turn any exception into the end of this one sequence."""
        if not isinstance(error, DomainError):
            self._events.emit(
                FaultObserved("engine.sequence", f"{type(error).__name__}: {error}", self._clock.now_ns())
            )
            error = ComputeFailed(f"computing this request failed: {type(error).__name__}: {error}")
        self._fail(running, error)

    def _fail(self, running: _Running, error: DomainError) -> None:
        self._end(running, Phase.FAILED, Failed(error, running.usage()))

    def _end(self, running: _Running, phase: Phase, item: Finished | Failed) -> None:
        sequence = running.sequence
        if sequence.phase is Phase.QUEUED:
            self._on_left_queue()
        sequence.enter(phase)
        del self._running[sequence.id]
        del self._by_request[sequence.request.id]
        if (model := self._models.get(running.submission.model)) is not None:
            model.close([sequence.id])
        id, usage, now = sequence.request.id, running.usage(), self._clock.now_ns()
        if isinstance(item, Failed):
            ended = RequestEnded(id, "error", usage, now, item.error.code, item.error.message)
        else:
            ended = RequestEnded(id, item.reason.value, usage, now)
        self._events.emit(ended)
        self._send(running, item)

    def _send(self, running: _Running, item: StreamItem) -> None:
        self._outbox.append((running.sequence.request.id, item))

    def _deliver(self) -> None:
        if self._outbox:
            batch, self._outbox = self._outbox, []
            self._sink.deliver(batch)


__all__ = ("StepRunner", "Submission")
