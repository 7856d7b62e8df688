"""What was submitted and has not ended: so that each choice ends once, also when nobody is left to tell it.

Event loop only.
"""

from collections.abc import Sequence

from application.events import Event
from application.ports.engine import Ended, EngineError, ResumedChoice, StepBatch, Submission, Tokens
from domain.errors import DomainError
from domain.ids import RequestId
from domain.request import Usage


class OpenChoices:
    def __init__(self) -> None:
        self._open: dict[RequestId, dict[int, int]] = {}  # tokens that were told, by choice
        self._num_prompt: dict[RequestId, int] = {}
        self._num_in_queue = 0

    def __len__(self) -> int:
        """Choices. Any thread."""
        return sum(map(len, tuple(self._open.values())))

    def add(self, submission: Submission) -> None:
        found = submission.resumed or (ResumedChoice(),) * submission.num_choices
        self._open[submission.id] = {at: len(one.output_ids) for at, one in enumerate(found) if one is not None}
        self._num_prompt[submission.id] = len(submission.prompt.token_ids)
        self._num_in_queue += sum(one is not None and not one.has_left_queue for one in found)

    def took(self, batch: StepBatch) -> None:
        """It was told to the text side."""
        self._num_in_queue -= batch.num_left_queue
        for id, choice, item in batch.items:
            choices = self._open.get(id)
            if choices is None or choice not in choices:
                continue
            if isinstance(item, Ended):
                del choices[choice]
                if not choices:
                    del self._open[id], self._num_prompt[id]
            elif isinstance(item, Tokens):
                choices[choice] += len(item.token_ids)

    def ended(self, error: DomainError, at_ns: int, events: Sequence[Event] = ()) -> StepBatch | None:
        """All that is open ends with this error; None where there is nothing to tell."""
        told = EngineError.of(error)
        items = tuple(
            (id, choice, Ended(Usage(self._num_prompt[id], num_tokens), None, told))
            for id, choices in self._open.items()
            for choice, num_tokens in choices.items()
        )
        num_left, self._num_in_queue = self._num_in_queue, 0
        self._open.clear()
        self._num_prompt.clear()
        return StepBatch(at_ns, items, tuple(events), num_left) if items or events or num_left else None


__all__ = ("OpenChoices",)
