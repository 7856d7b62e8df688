"""Submitted work with the engines' reports of it: enough for another engine to continue where one was lost.

    sent ──computed at a loss──► suspect ──sent again, one suspect at a time──► on probation ──got further──► sent
                                                                                     │
                        lost again before it got further, or computed at MAX_SUSPICIONS losses ──► EngineLost

Only work that the engine computed at the moment of the loss is suspect. While a suspect waits to be sent again, work
that was never admitted waits behind it, so that new requests do not take the places of running streams. If a model was
being loaded, the load is blamed and no work is suspect.

Work that ends without an engine (cancelled, failed, lost too often) is reported as an engine would report it: in a
batch, before which it is removed here. Event loop only.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from application.events import Event, RequestAdmitted, RequestPreempted
from application.ports.clock import Clock
from application.ports.engine import (
    Ended,
    Engine,
    EngineError,
    EngineItem,
    ImageWanted,
    ResumedChoice,
    StepBatch,
    Submission,
    Tokens,
)
from application.services.faults import described
from domain.errors import ComputeFailed, DomainError, EngineLost
from domain.ids import ModelId, RequestId
from domain.prefix.explanation import Explanation
from domain.request.request import FinishReason, Usage, choice_id
from domain.request.stream import Admitted, PrefillProgress

MAX_SUSPICIONS = 5
"""The number of losses during its computation after which a request ends, however far it got between them."""


@dataclass(slots=True)
class _Choice:
    """The reports of one choice. `cancelled`: the reason, and the number of tokens that count."""

    output_ids: list[int] = field(default_factory=list[int])
    explanation: Explanation | None = None
    num_prompt_done: int = 0
    has_left_queue: bool = False
    cancelled: tuple[FinishReason, int | None] | None = None


class Work:
    """One submission. `choices`: those that have not ended. `is_sent`: the present engine has it. `is_suspect`: it was
    computed when an engine was lost and has made no progress since."""

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.choices = {choice: _Choice() for choice in submission.open_choices}
        self.is_sent = self.is_suspect = False
        self.num_suspicions = 0
        self._is_untouched = True

    @property
    def was_admitted(self) -> bool:
        return any(choice.has_left_queue for choice in self.choices.values())

    def received(self, number: int, item: EngineItem) -> None:
        """Notes the engine's report of a choice that has not ended."""
        choice, self._is_untouched = self.choices[number], False
        if isinstance(item, ImageWanted):
            return
        if isinstance(item, Admitted):
            choice.explanation = item.explanation
            return
        self.is_suspect = False
        if isinstance(item, Tokens):
            choice.output_ids += item.token_ids
        elif isinstance(item, PrefillProgress):
            choice.num_prompt_done = item.num_done
        elif isinstance(item, Ended):
            del self.choices[number]

    def left_queue(self, number: int) -> None:
        if number in self.choices:
            self._is_untouched = False
            self.choices[number].has_left_queue = True

    def suspected(self) -> bool:
        """Notes that the work was computed when an engine was lost. Returns False if it must end."""
        self.num_suspicions += 1
        was_suspect, self.is_suspect = self.is_suspect, True
        return not was_suspect and self.num_suspicions < MAX_SUSPICIONS

    def cancel(self, number: int | None, reason: FinishReason, num_tokens: int | None) -> None:
        """Cancels one choice or all (None). Only the first call counts."""
        for at in self.choices if number is None else (number,):
            choice = self.choices.get(at)
            if choice is not None and choice.cancelled is None:
                choice.cancelled = reason, num_tokens

    def cancelled(self, number: int) -> Ended | None:
        """Returns the end of a cancelled choice as an engine would report it; None if it was not cancelled."""
        choice = self.choices[number]
        if choice.cancelled is None:
            return None
        reason, num_tokens = choice.cancelled
        return Ended(self._usage(choice, num_tokens), reason if choice.output_ids else FinishReason.CANCELLED)

    def failed(self, number: int, error: DomainError) -> Ended:
        return Ended(self._usage(self.choices[number], None), None, EngineError.of(error))

    def resumed(self) -> Submission:
        """Returns the submission for another engine."""
        if self._is_untouched:
            return self.submission
        found = (self.choices.get(number) for number in range(self.submission.num_choices))
        return replace(self.submission, resumed=tuple(None if one is None else self._resumed(one) for one in found))

    def _resumed(self, choice: _Choice) -> ResumedChoice:
        num_prompt = len(self.submission.prompt.token_ids)
        num_done = num_prompt if choice.output_ids else choice.num_prompt_done
        return ResumedChoice(tuple(choice.output_ids), choice.explanation, num_done, choice.has_left_queue)

    def _usage(self, choice: _Choice, num_tokens: int | None) -> Usage:
        num_output = len(choice.output_ids) if num_tokens is None else min(num_tokens, len(choice.output_ids))
        if choice.explanation is None:
            return Usage(self.submission.num_prompt_tokens, num_output)
        return Usage.of(choice.explanation, num_output)


class OpenWork:
    """The table of all work that has not ended, by request and by choice."""

    def __init__(self, clock: Clock, report: Callable[[StepBatch], None]) -> None:
        """`report`: called with the ends that no engine reports."""
        self._clock, self._report = clock, report
        self._open: dict[RequestId, Work] = {}
        self._choices: dict[RequestId, tuple[Work, int]] = {}
        self._computing: tuple[RequestId, ...] = ()

    def __iter__(self) -> Iterator[Work]:
        return iter(tuple(self._open.values()))

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    @property
    def num_unsent(self) -> int:
        """Choices that the present engine does not have. Any thread."""
        return sum(len(work.choices) for work in self if not work.is_sent)

    def get(self, id: RequestId) -> Work | None:
        return self._open.get(id)

    def add(self, submission: Submission) -> Work:
        work = self._open[submission.id] = Work(submission)
        for number in work.choices:
            self._choices[choice_id(submission.id, number)] = work, number
        return work

    def forget(self, work: Work) -> None:
        """Removes work that the engine refused."""
        for number in work.choices:
            del self._choices[choice_id(work.submission.id, number)]
        del self._open[work.submission.id]

    def sendable(self) -> list[Work]:
        """Returns the unsent work that the present engine may have now, in order."""
        unsent = [work for work in self if not work.is_sent]
        suspects = [work for work in unsent if work.is_suspect]
        first = [] if any(work.is_suspect and work.is_sent for work in self) else suspects[:1]
        has_waiting = len(suspects) > len(first)
        others = (work for work in unsent if not work.is_suspect)
        return first + [work for work in others if work.was_admitted or not has_waiting]

    def send(self, work: Work, engine: Engine) -> None:
        """Submits the work. Raises DomainError."""
        engine.submit(work.resumed())
        work.is_sent = True

    def send_all(self, engine: Engine, missing: Collection[ModelId]) -> None:
        """Submits all sendable work, except for models in `missing`. Refused work ends."""
        refused = list[tuple[Work, int, Ended]]()
        for work in self.sendable():
            if work.submission.model not in missing:
                try:
                    self.send(work, engine)
                except Exception as error:  # work that cannot be sent fails alone, whatever the reason
                    failure = error if isinstance(error, DomainError) else ComputeFailed(described(error))
                    refused += [(work, number, work.failed(number, failure)) for number in work.choices]
        self._end(refused)

    def received(self, batch: StepBatch) -> None:
        """Notes a batch of the present engine."""
        if batch.computing is not None:
            self._computing = batch.computing
        for event in batch.events:
            if isinstance(event, RequestAdmitted) and (found := self._choices.get(event.id)) is not None:
                found[0].left_queue(found[1])
        for id, number, item in batch.items:
            work = self._open.get(id)
            if work is not None and number in work.choices:
                self._note(work, number, item)

    def lost(self, why: str, *, is_explained: bool) -> None:
        """Notes that the present engine was lost. Cancelled work ends, and work that was computed at too many losses;
        the rest is reported as preempted. `is_explained`: a load is blamed, and no work is suspect."""
        computed = [] if is_explained else [found[0] for id in self._computing if (found := self._choices.get(id))]
        condemned = [work for work in dict.fromkeys(computed) if work.is_sent and not work.suspected()]
        ended, events = list[tuple[Work, int, Ended]](), list[Event]()
        for work in self:
            for number, choice in work.choices.items():
                if (end := work.cancelled(number)) is not None:
                    ended.append((work, number, end))
                elif work in condemned:
                    error = EngineLost(f"the engine was lost {work.num_suspicions} times over this request: {why}")
                    ended.append((work, number, work.failed(number, error)))
                elif choice.has_left_queue:
                    id = choice_id(work.submission.id, number)
                    events.append(RequestPreempted(id, self._clock.now_ns()))
            work.is_sent = False
        self._computing = ()
        self._end(ended, events)

    def end_cancelled(self, work: Work) -> None:
        """Ends the cancelled choices of unsent work."""
        found = [(work, number, work.cancelled(number)) for number in work.choices]
        self._end([(work, number, end) for work, number, end in found if end is not None])

    def fail(self, error: DomainError, model: ModelId | None = None) -> None:
        """Ends all work, or that of one model, with `error`."""
        works = [work for work in self if model in (None, work.submission.model)]
        self._end([(work, number, work.failed(number, error)) for work in works for number in work.choices])

    def _end(self, ended: Iterable[tuple[Work, int, Ended]], events: Iterable[Event] = ()) -> None:
        items, found, num_left = list[tuple[RequestId, int, Ended]](), tuple(events), 0
        for work, number, end in ended:
            num_left += not work.choices[number].has_left_queue
            items.append((work.submission.id, number, end))
            self._note(work, number, end)
        if items or found:
            self._report(StepBatch(self._clock.now_ns(), tuple(items), found, num_left))

    def _note(self, work: Work, number: int, item: EngineItem) -> None:
        work.received(number, item)
        if isinstance(item, Ended):
            id = work.submission.id
            self._choices.pop(choice_id(id, number), None)
            if not work.choices:
                self._open.pop(id, None)
