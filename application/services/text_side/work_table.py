"""What is open of engines that may be lost: by request, by choice, and whether the present engine has it.

What ends without an engine's word (it was cancelled, it failed, it was there at too many losses) is told as an engine
would tell it: in a batch, after which it is gone from here.

Event loop only.
"""

from collections.abc import Iterable

from application.events import Event, RequestAdmitted, RequestPreempted
from application.ports.engine import Ended, Engine, EngineItem, StepBatch, Submission
from application.services.text_side.open_work import OpenWork
from domain.errors import DomainError, EngineLost
from domain.ids import RequestId
from domain.request import choice_id

MAX_LOSSES = 2
"""What was there at so many may be what ends the engine."""


class WorkTable:
    def __init__(self) -> None:
        self._open: dict[RequestId, OpenWork] = {}
        self._choices: dict[RequestId, tuple[OpenWork, int]] = {}
        self._sent: set[RequestId] = set()

    @property
    def works(self) -> tuple[OpenWork, ...]:
        return tuple(self._open.values())

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    def get(self, id: RequestId) -> OpenWork | None:
        return self._open.get(id)

    def add(self, submission: Submission) -> OpenWork:
        work = self._open[submission.id] = OpenWork(submission)
        for choice in work.choices:
            self._choices[choice_id(submission.id, choice)] = work, choice
        return work

    def forget(self, work: OpenWork) -> None:
        """It was not taken."""
        for choice in work.choices:
            del self._choices[choice_id(work.submission.id, choice)]
        del self._open[work.submission.id]

    def send(self, work: OpenWork, engine: Engine) -> None:
        """To the present engine, with all that was told of it. Raises DomainError."""
        engine.submit(work.resumed())
        self._sent.add(work.submission.id)

    def is_sent(self, work: OpenWork) -> bool:
        return work.submission.id in self._sent

    def begin(self) -> None:
        """Another engine, which has nothing of it yet."""
        self._sent.clear()

    def took(self, batch: StepBatch) -> None:
        """The present engine told this."""
        for event in batch.events:
            if isinstance(event, RequestAdmitted) and (found := self._choices.get(event.id)) is not None:
                found[0].left_queue(found[1])
        for id, choice, item in batch.items:
            work = self._open.get(id)
            if work is not None and choice in work.choices:
                self._note(work, choice, item)

    def lost(self, why: str, at_ns: int) -> StepBatch | None:
        """The present engine was: what was cancelled ends, and what was there too often; the rest is preempted."""
        ended, events = list[tuple[OpenWork, int, Ended]](), list[Event]()
        for work in self.works:
            work.num_losses += self.is_sent(work)
            for choice in work.choices:
                if (end := work.cancelled(choice)) is not None:
                    ended.append((work, choice, end))
                elif work.num_losses >= MAX_LOSSES:
                    error = EngineLost(f"the engine was lost {work.num_losses} times over this request: {why}")
                    ended.append((work, choice, work.failed(choice, error)))
                elif work.has_left_queue(choice):
                    id = choice_id(work.submission.id, choice)
                    events.append(RequestPreempted(id, work.num_computed(choice), at_ns))
        self._sent.clear()
        return self._ended(ended, at_ns, events)

    def cancelled(self, work: OpenWork, at_ns: int) -> StepBatch | None:
        """No engine has it, and this of it was cancelled."""
        found = [(work, choice, work.cancelled(choice)) for choice in work.choices]
        return self._ended([(work, choice, end) for work, choice, end in found if end is not None], at_ns)

    def failed(self, error: DomainError, works: Iterable[OpenWork], at_ns: int) -> StepBatch | None:
        return self._ended(
            [(work, choice, work.failed(choice, error)) for work in works for choice in work.choices], at_ns
        )

    def _ended(
        self, ended: Iterable[tuple[OpenWork, int, Ended]], at_ns: int, events: Iterable[Event] = ()
    ) -> StepBatch | None:
        """None when there is nothing to tell."""
        items, num_left = list[tuple[RequestId, int, Ended]](), 0
        for work, choice, end in ended:
            num_left += not work.has_left_queue(choice)
            items.append((work.submission.id, choice, end))
            self._note(work, choice, end)
        told = tuple(events)
        return StepBatch(at_ns, tuple(items), told, num_left) if items or told else None

    def _note(self, work: OpenWork, choice: int, item: EngineItem) -> None:
        work.took(choice, item)
        if isinstance(item, Ended):
            id = work.submission.id
            self._choices.pop(choice_id(id, choice), None)
            if not work.choices:
                self._open.pop(id, None)
                self._sent.discard(id)


__all__ = ("MAX_LOSSES", "WorkTable")
