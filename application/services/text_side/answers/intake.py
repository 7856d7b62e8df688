"""The way of every request into the engine: a place in the queue, its model, its preparation, and its submission."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from application.events import RequestQueued, RequestRefused
from application.ports.clock import Clock
from application.ports.engine import Engine, Submission
from application.ports.event_sink import EventSink
from application.ports.vision import PrepareImage
from application.services.text_side.answers.answer import Answer
from application.services.text_side.answers.choice import Choice
from application.services.text_side.answers.open_requests import OpenRequests
from application.services.text_side.answers.prompt_encoder import PromptEncoder
from application.services.text_side.models.model_finder import ServedModel
from application.services.text_side.models.model_pool import ModelPool
from domain.errors import DomainError
from domain.ids import ModelId
from domain.printable import printable
from domain.request.request import GenerationRequest, choice_id, choice_seed


@dataclass(slots=True)
class Intake:
    """Event loop only."""

    pool: ModelPool
    engine: Engine
    requests: OpenRequests
    events: EventSink
    clock: Clock
    encoder: PromptEncoder

    async def start(
        self,
        request: GenerationRequest,
        prepare: Callable[[GenerationRequest, Answer], Awaitable[None]],
        answer: Answer | None = None,
        lease: ServedModel | None = None,
    ) -> Answer:
        """Returns the answer that a request belongs to, once `prepare` has submitted it: `answer`, or a new one for its
        first prompt. `lease`: see `Generate.start`. Raises any DomainError, also for a model that cannot do what is
        asked for; nothing is held afterwards if it does, except `answer`."""
        started_ns = self.clock.now_ns()
        if request.arrived_ns is None:
            request = replace(request, arrived_ns=started_ns)
        try:
            self.requests.reserve(request.num_choices)
            try:
                with self.requests.prepare(request, started_ns) as preparation:
                    found = answer or await self._leased(request, lease)
                    preparation.has_model = True
                    try:
                        found.model.source.check(request.needs)
                        await prepare(request, found)
                    except BaseException:
                        if answer is None:
                            found.close()
                        raise
                    return found
            except BaseException:
                self.requests.release(request.num_choices)
                raise
        except DomainError as error:
            self.events.emit(
                RequestRefused(
                    ModelId(printable(request.model)),
                    error.code,
                    self.clock.now_ns(),
                    started_ns,
                    request.kind,
                    request.trace_carrier,
                )
            )
            raise

    def submit(
        self,
        request: GenerationRequest,
        submission: Submission,
        answer: Answer,
        choices: Sequence[Choice],
        images: Mapping[bytes, PrepareImage] = MappingProxyType({}),
    ) -> None:
        """Submits a prepared request. From here on the engine holds its places in the queue. `images`: as in
        `OpenRequests.add`."""
        queued_ns = self.clock.now_ns()  # before the engine can admit it
        self.engine.submit(submission)
        answer.add(submission.prompt, choices)
        self.requests.add(answer, choices, images)
        for choice in choices:
            self.events.emit(_queued(request, submission, choice.number, queued_ns))

    async def _leased(self, request: GenerationRequest, lease: ServedModel | None) -> Answer:
        is_shared = lease is not None and lease.source.id == request.model and self.pool.share(lease)
        served = lease if lease is not None and is_shared else await self.pool.acquire(request.model, request.needs)
        return Answer(self.engine, served, partial(self.pool.release, served))


def _queued(request: GenerationRequest, submission: Submission, choice: int, queued_ns: int) -> RequestQueued:
    sampling = request.sampling
    if sampling.seed is not None and choice:
        sampling = replace(sampling, seed=choice_seed(sampling.seed, choice))
    return RequestQueued(
        id=choice_id(request.id, choice),
        model=submission.model,
        requested_model=request.model,
        kind=request.kind,
        num_prompt_tokens=submission.num_prompt_tokens,
        at_ns=queued_ns,
        sampling=sampling,
        max_tokens=request.stop.max_tokens,
        num_stop_strings=len(request.stop.stop),
        trace_carrier=request.trace_carrier,
        client=request.client,
        operation=request.operation,
        priority=request.priority.value,
        choice=choice,
    )
