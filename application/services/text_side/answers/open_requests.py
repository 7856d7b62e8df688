"""The table of open requests: prepared, waiting in the queue, or computed. It receives the engine's batches.

    entering ──► model ──► prompt ──► submit ──► queue ──► computed ──► the engine has ended all choices
      └── Preparation: cancelled by asyncio ──┘     └── Answer: cancelled in the engine ──┘

A place in the queue is taken before a prompt is prepared and given back when the engine reports that the choice has
left its queue. A request stays open until the engine has ended all its choices, also when its client has left: only
then its cost is known.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from application.events import Event, FaultObserved, RequestEnded, RequestQueued, RequestRefused, TokensReceived
from application.ports.clock import Clock
from application.ports.engine import Ended, Engine, EngineError, ImageWanted, StepBatch, Submission, Tokens
from application.ports.event_sink import EventSink
from application.ports.vision import PreparedImage
from application.services.faults import placed
from application.services.request_timelines import RequestTimelines
from application.services.text_side.answers.answer import Answer
from application.services.text_side.answers.choice import Choice
from application.services.text_side.answers.prompt_images import WantedImages
from domain.errors import (
    ComputeFailed,
    DomainError,
    QueueFull,
    RequestCancelled,
    RequestNotFound,
    ServerUnavailable,
)
from domain.ids import ModelId, RequestId
from domain.printable import printable
from domain.request.request import GenerationRequest, Usage, choice_seed
from domain.request.stream import Admitted, Failed, Finished

STOPPING = "the server is stopping; try again once it is back"
RETRY_AFTER_S = 10
"""The `Retry-After` of requests that are refused without an engine: another one may have been started by then."""


@dataclass(slots=True)
class Preparation:
    """A request before its submission. `task` prepares it, and had been cancelled `num_cancelled` times before.
    `has_model`: it no longer waits for its model. `cancelled_for`: why it is cancelled."""

    request: GenerationRequest
    started_ns: int
    task: "asyncio.Task[object]"
    num_cancelled: int
    has_model: bool = False
    cancelled_for: DomainError | None = None


class OpenRequests:
    """The engine is started with `receive`. Event loop only, but for the counts."""

    def __init__(
        self,
        engine: Engine,
        events: EventSink,
        clock: Clock,
        max_queue: int,
        timelines: RequestTimelines | None = None,
    ) -> None:
        """`max_queue`: choices that may wait or be prepared. `timelines`: keeps the result of each choice's lookup."""
        self._engine = engine
        self._events = events
        self._clock = clock
        self.max_queue = max_queue
        self._timelines = timelines or RequestTimelines()
        self._preparing: dict[RequestId, Preparation] = {}
        self._enclosed: dict[RequestId, Preparation] = {}
        self._open: dict[RequestId, tuple[Answer, Sequence[Choice]]] = {}
        self._images: dict[RequestId, WantedImages] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_cut_off = False
        self.num_waiting = 0
        """Choices that wait in the queue or are being prepared."""

    @property
    def num_read(self) -> int:
        """Requests whose client has not left."""
        return sum(not answer.is_closed for answer, _ in tuple(self._open.values()))

    @property
    def num_open(self) -> int:
        """Requests that the engine has not ended."""
        return len(self._open)

    # ---- before the submission ---------------------------------------------------------------------------------

    def reserve(self, num_choices: int) -> None:
        """Reserves places in the queue before a prompt is prepared. Raises QueueFull or ServerUnavailable."""
        if self._is_cut_off:
            raise ServerUnavailable(STOPPING)
        status = self._engine.status()
        if not status.is_alive:
            raise ServerUnavailable(status.fault or "the engine is not running", retry_after_s=RETRY_AFTER_S)
        if self.num_waiting + num_choices > self.max_queue:
            raise QueueFull(f"the queue is full: {self.num_waiting} requests are waiting; try again later")
        self.num_waiting += num_choices

    @asynccontextmanager
    async def entering(self, request: GenerationRequest, answer: Answer) -> AsyncGenerator[GenerationRequest]:
        """Encloses the way of a request to `submit`: yields it with its arrival, once it has its places in the queue
        and `answer` a lease on its model. If the block fails, the places are given back. Raises any DomainError, also
        for a model that cannot do what is asked for, and reports it as the refusal of the request."""
        started_ns = self._clock.now_ns()
        if request.arrived_ns is None:
            request = replace(request, arrived_ns=started_ns)
        try:
            self.reserve(request.num_choices)
            try:
                with self.prepare(request, started_ns) as preparation:
                    await answer.lease(request)
                    preparation.has_model = True
                    answer.model.source.check(request.needs)
                    yield request
            except BaseException:
                self.num_waiting -= request.num_choices
                raise
        except DomainError as error:
            model, ended_ns = ModelId(printable(request.model)), self._clock.now_ns()
            about = request.kind, request.trace_carrier
            self._events.emit(RequestRefused(model, error.code, ended_ns, started_ns, *about))
            raise

    def preparations(self) -> Sequence[Preparation]:
        """Returns the preparations under way, the longest waiting first."""
        return list(self._preparing.values())

    @contextmanager
    def prepare(self, request: GenerationRequest, started_ns: int) -> Generator[Preparation]:
        """Encloses all work on a request before its submission. `cancel` ends that work by asyncio's cancellation, as a
        deadline does, and this raises its reason in place of CancelledError."""
        with self._ended_by_cancel(self._preparing, request, started_ns) as one:
            yield one

    @contextmanager
    def enclosing(self, request: GenerationRequest) -> Generator[None]:
        """Encloses an answer of several requests, the first of which has its id, in the task that makes it. `cancel`
        of that id ends what runs of it, as in `prepare`."""
        with self._ended_by_cancel(self._enclosed, request, self._clock.now_ns()):
            yield

    @contextmanager
    def _ended_by_cancel(
        self, table: dict[RequestId, Preparation], request: GenerationRequest, started_ns: int
    ) -> Generator[Preparation]:
        task = asyncio.current_task()
        assert task is not None  # Event loop only
        one = table[request.id] = Preparation(request, started_ns, task, task.cancelling())
        try:
            yield one
        except asyncio.CancelledError:
            if one.cancelled_for is not None and task.uncancel() <= one.num_cancelled:
                raise one.cancelled_for from None
            raise  # its client disconnected as well
        finally:
            del table[request.id]

    # ---- submitted ---------------------------------------------------------------------------------------------

    def submit(
        self,
        answer: Answer,
        submission: Submission,
        choices: Sequence[Choice],
        images: WantedImages | None = None,
    ) -> None:
        """Submits a prepared prompt with its choices. From here on the engine holds its places in the queue. `images`:
        those of the prompt, for when the engine wants them."""
        queued_ns = self._clock.now_ns()  # before the engine can admit it
        self._engine.submit(submission)
        answer.add(submission.prompt, choices)
        self._open[submission.id] = answer, choices
        if images is not None:
            self._images[submission.id] = images
        for choice in choices:
            self._events.emit(_queued(choice, submission, queued_ns))

    def cancel(self, id: RequestId) -> None:
        """Ends a request with all its choices, or one choice by its own id, within one engine step. Its client gets
        RequestCancelled. Raises RequestNotFound for an id that is not open."""
        if self._stop_work(id, RequestCancelled()):
            return
        if id in self._open:
            self._engine.cancel(id)
            return
        for _, choices in self._open.values():
            for choice in choices:
                if choice.id == id:
                    self._engine.cancel(choice.request.id, choice.number)
                    return
        raise RequestNotFound(f"no request '{printable(id)}' is open")

    def cut_off(self) -> None:
        """Ends open and waiting requests with ServerUnavailable, and refuses new ones: the server stops and waits no
        longer."""
        self._is_cut_off = True
        for id in (*self._enclosed, *self._preparing):
            self._stop_work(id, ServerUnavailable(STOPPING))
        for answer, choices in tuple(self._open.values()):
            for choice in choices:
                answer.fail(choice, ServerUnavailable(STOPPING))

    def receive(self, batch: StepBatch) -> None:
        """Passes each item of the engine's batch to its choice, and emits the batch's events and the ends."""
        self.num_waiting -= batch.num_left_queue
        ended: list[Event] = []
        counts: list[tuple[RequestId, int]] = []
        for id, number, item in batch.items:
            found = self._open.get(id)
            if found is None:
                continue
            answer, choices = found
            choice = choices[number]
            started_ns, has_failed = self._clock.now_ns(), False
            try:
                answer.receive(choice, item)
            except Exception as error:
                has_failed = True
                self._events.emit(FaultObserved("text.output", placed(error), self._clock.now_ns()))
                answer.fail(choice, ComputeFailed(f"the answer's tokens could not be parsed: {placed(error)}"))
            choice.note_parsing(item, started_ns, self._clock.now_ns(), has_failed=has_failed)
            if isinstance(item, ImageWanted):
                self._provide(answer.model.source.id, choice.request, item.digest)
            elif isinstance(item, Tokens):
                counts.append((choice.id, len(item.token_ids)))
            elif isinstance(item, Admitted):
                self._timelines.explained(choice.id, choice.request, item.explanation)
            elif isinstance(item, Ended) and choice.outcome is not None:
                choice.is_in_engine = False
                ended.append(_ended(choice, choice.outcome, batch.at_ns, self._clock.now_ns()))
                if not any(one.is_in_engine for one in choices):
                    del self._open[id]
                    self._images.pop(id, None)
        received = (TokensReceived(tuple(counts), batch.at_ns),) if counts else ()
        for event in (*batch.events, *received, *ended):
            self._events.emit(event)

    def _provide(self, model: ModelId, request: GenerationRequest, digest: bytes) -> None:
        """Answers the engine's need for an image as soon as it is prepared."""
        images = self._images[request.id]

        async def provide() -> None:
            found: PreparedImage | EngineError
            try:
                found = await images.prepare(digest)
            except DomainError as error:
                found = EngineError.of(error)
            except Exception as error:
                self._events.emit(FaultObserved("text.images", placed(error), self._clock.now_ns()))
                found = EngineError.of(ComputeFailed(f"an image could not be prepared: {placed(error)}"))
            self._engine.provide_image(model, request.cache_salt, digest, found)

        task = asyncio.get_running_loop().create_task(provide())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _stop_work(self, id: RequestId, why: DomainError) -> bool:
        one = self._enclosed.get(id) or self._preparing.get(id)
        if one is not None and one.cancelled_for is None:
            one.cancelled_for = why
            one.task.cancel()
        return one is not None


def _queued(choice: Choice, submission: Submission, at_ns: int) -> RequestQueued:
    request = choice.request
    sampling = request.sampling
    if sampling.seed is not None and choice.number:
        sampling = replace(sampling, seed=choice_seed(sampling.seed, choice.number))
    return RequestQueued(
        id=choice.id,
        model=submission.model,
        requested_model=request.model,
        kind=request.kind,
        num_prompt_tokens=submission.num_prompt_tokens,
        at_ns=at_ns,
        sampling=sampling,
        max_tokens=request.stop.max_tokens,
        num_stop_strings=len(request.stop.stop),
        trace_carrier=request.trace_carrier,
        client=request.client,
        operation=request.operation,
        priority=request.priority.value,
        choice=choice.number,
    )


def _ended(choice: Choice, outcome: Finished | Failed, at_ns: int, now_ns: int) -> RequestEnded:
    error = outcome.error if isinstance(outcome, Failed) else None
    return RequestEnded(
        id=choice.id,
        reason="error" if isinstance(outcome, Failed) else outcome.reason.value,
        usage=outcome.usage or Usage(choice.num_prompt, 0),
        at_ns=at_ns,
        error_code=error.code if error is not None else None,
        error_message=error.message if error is not None else "",
        parsing=choice.parsing(now_ns),
    )
