"""The text side's end of the engine port: who waits for a place, whose items go where, and telemetry to its sinks.

A place in the queue is taken before a prompt is prepared and given back when the engine says that the choice has left
its queue. A request is open until the engine has ended all its choices, also when its client has left: only then is it
known what it has cost.
"""

from collections.abc import Callable
from typing import TypeAlias

from application.events import Event, FaultObserved, RequestEnded, TokensReceived
from application.ports.clock import Clock
from application.ports.engine import Ended, Engine, StepBatch, Tokens
from application.ports.event_sink import EventSink
from application.services.event_fan_out import EventFanOut
from application.services.faults import placed
from application.services.text_side.answers.generation import Generation
from application.services.text_side.answers.preparations import Preparations
from domain.errors import ComputeFailed, QueueFull, RequestNotFound, ServerUnavailable
from domain.ids import RequestId
from domain.prefix.explanation import Explanation
from domain.request.request import GenerationRequest, Usage, choice_id
from domain.request.stream import Admitted, Failed, Finished
from domain.shown import shown

STOPPING = "the server is stopping; ask again once it is back"
RETRY_AFTER_S = 10
"""Seconds after which a client that was refused may ask again: another engine may have been started by then."""

Explained: TypeAlias = Callable[[RequestId, GenerationRequest, Explanation], None]
"""Told what the lookup of a choice found; event loop, must neither block nor raise."""


def _nobody_asks(_id: RequestId, _request: GenerationRequest, _told: Explanation) -> None:
    return


class OpenRequests:
    """`receive` is what the engine is started with. Event loop only, but for the counts."""

    def __init__(
        self, engine: Engine, events: EventSink, clock: Clock, max_queue: int, explained: Explained = _nobody_asks
    ) -> None:
        """`max_queue`: choices waiting or being prepared."""
        self._engine = engine
        self._events = EventFanOut(events)
        self._clock = clock
        self.max_queue = max_queue
        self._explained = explained
        self.preparations = Preparations()
        self._open: dict[RequestId, Generation] = {}
        self._is_cut_off = False
        self.num_waiting = 0
        """Choices that wait in the queue or are being prepared."""

    @property
    def num_read(self) -> int:
        """Requests whose client has not left."""
        return sum(not generation.is_closed for generation in tuple(self._open.values()))

    @property
    def num_open(self) -> int:
        """Requests of which the engine still has to tell something."""
        return len(self._open)

    def reserve(self, num_choices: int) -> None:
        """Take places in the queue before preparing a prompt. Raises QueueFull or ServerUnavailable."""
        if self._is_cut_off:
            raise ServerUnavailable(STOPPING)
        status = self._engine.status()
        if not status.is_alive:
            raise ServerUnavailable(status.fault or "the engine is not running", retry_after_s=RETRY_AFTER_S)
        if self.num_waiting + num_choices > self.max_queue:
            raise QueueFull(f"{self.num_waiting} requests are waiting already")
        self.num_waiting += num_choices

    def release(self, num_choices: int) -> None:
        """Give places back of what was never submitted."""
        self.num_waiting -= num_choices

    def add(self, generation: Generation) -> None:
        """It has just been submitted."""
        self._open[generation.request.id] = generation

    def cancel(self, id: RequestId) -> None:
        """End a request with all its choices, or one choice by its own id, within one engine step, whoever asked for
        it. Its client is told that it was cancelled. Raises RequestNotFound for what is not open."""
        if self.preparations.cancel(id):
            return
        if id in self._open:
            self._engine.cancel(id)
            return
        for request in [generation.request for generation in self._open.values()]:
            for choice in range(1, request.num_choices):
                if choice_id(request.id, choice) == id:
                    self._engine.cancel(request.id, choice)
                    return
        raise RequestNotFound(f"no request '{shown(id)}' is open")

    def cut_off(self) -> None:
        """The server stops and waits no longer: whoever is open, waits or comes now is told so."""
        self._is_cut_off = True
        for one in self.preparations.all():
            self.preparations.cancel(one.request.id, ServerUnavailable(STOPPING))
        for generation in tuple(self._open.values()):
            for choice in range(generation.request.num_choices):
                generation.fail(choice, ServerUnavailable(STOPPING))

    def receive(self, batch: StepBatch) -> None:
        self.num_waiting -= batch.num_left_queue
        ended: list[Event] = []
        counts: list[tuple[RequestId, int]] = []
        for id, choice, item in batch.items:
            generation = self._open.get(id)
            if generation is None:
                continue
            started_ns, has_failed = self._clock.now_ns(), False
            try:
                generation.receive(choice, item)
            except Exception as error:
                has_failed = True
                self._events.emit(FaultObserved("text.output", placed(error), self._clock.now_ns()))
                generation.fail(choice, ComputeFailed(f"the answer could not be made into text: {placed(error)}"))
            generation.note_parsing(choice, item, started_ns, self._clock.now_ns(), has_failed=has_failed)
            if isinstance(item, Tokens):
                counts.append((choice_id(id, choice), len(item.token_ids)))
            elif isinstance(item, Admitted):
                self._explained(choice_id(id, choice), generation.request, item.explanation)
            elif isinstance(item, Ended) and (outcome := generation.left_engine(choice)) is not None:
                ended.append(_ended(generation, choice, outcome, batch.at_ns, self._clock.now_ns()))
        received = (TokensReceived(tuple(counts), batch.at_ns),) if counts else ()
        for event in (*batch.events, *received, *ended):
            self._events.emit(event)
        for id in {id for id, _, _ in batch.items if id in self._open and not self._open[id].is_in_engine}:
            del self._open[id]


def _ended(generation: Generation, choice: int, outcome: Finished | Failed, at_ns: int, now_ns: int) -> RequestEnded:
    error = outcome.error if isinstance(outcome, Failed) else None
    return RequestEnded(
        id=choice_id(generation.request.id, choice),
        reason="error" if isinstance(outcome, Failed) else outcome.reason.value,
        usage=outcome.usage or Usage(len(generation.prompt_ids), 0),
        at_ns=at_ns,
        error_code=error.code if error is not None else None,
        error_message=error.message if error is not None else "",
        parsing=generation.parsing(choice, now_ns),
    )
