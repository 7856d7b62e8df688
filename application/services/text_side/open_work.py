"""A submission that an engine has, and all that was told of it: enough for another engine to go on where this one was.

Event loop only.
"""

from dataclasses import dataclass, field, replace

from application.ports.engine import Ended, EngineError, EngineItem, Submission, Tokens
from domain.errors import DomainError
from domain.explanation import Explanation
from domain.request import FinishReason, Usage
from domain.stream import Admitted, PrefillProgress
from domain.told_choice import ToldChoice


@dataclass(slots=True)
class _Told:
    """`cancelled`: with which reason, and after how many tokens; None where nobody has."""

    output_ids: list[int] = field(default_factory=list[int])
    explanation: Explanation | None = None
    num_prompt_done: int = 0
    has_left_queue: bool = False
    cancelled: tuple[FinishReason, int | None] | None = None


class OpenWork:
    """`num_losses`: engines that were lost while they had it. `choices`: those that have not ended."""

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.num_losses = 0
        self._told = {choice: _Told() for choice in submission.open_choices}
        self._is_untouched = True

    @property
    def choices(self) -> tuple[int, ...]:
        return tuple(self._told)

    def took(self, choice: int, item: EngineItem) -> None:
        """This was told of a choice that had not ended."""
        self._is_untouched = False
        told = self._told[choice]
        match item:
            case Tokens():
                told.output_ids += item.token_ids
            case Admitted():
                told.explanation = item.explanation
            case PrefillProgress():
                told.num_prompt_done = item.num_done
            case Ended():
                del self._told[choice]
            case _:
                pass

    def left_queue(self, choice: int) -> None:
        """It was counted among those that did."""
        if choice in self._told:
            self._is_untouched = False
            self._told[choice].has_left_queue = True

    def has_left_queue(self, choice: int) -> bool:
        return self._told[choice].has_left_queue

    def num_computed(self, choice: int) -> int:
        """Tokens of prompt and output that another engine need not tell again."""
        told = self._told[choice]
        return told.num_prompt_done + len(told.output_ids)

    def cancel(self, choice: int | None, reason: FinishReason, num_tokens: int | None) -> None:
        """What its reader wants; the first word counts."""
        for number in self.choices if choice is None else (choice,):
            told = self._told.get(number)
            if told is not None and told.cancelled is None:
                told.cancelled = reason, num_tokens

    def cancelled(self, choice: int) -> Ended | None:
        """How a cancelled choice ends, as an engine would have it; None where nobody cancelled it."""
        told = self._told[choice]
        if told.cancelled is None:
            return None
        reason, num_tokens = told.cancelled
        if not told.output_ids:
            reason = FinishReason.CANCELLED
        return Ended(self._usage(told, num_tokens), reason)

    def failed(self, choice: int, error: DomainError) -> Ended:
        return Ended(self._usage(self._told[choice], None), None, EngineError.of(error))

    def resumed(self) -> Submission:
        """What another engine is to compute."""
        if self._is_untouched:
            return self.submission
        told = [self._told.get(choice) for choice in range(self.submission.num_choices)]
        values = (None if one is None else _value(one, self._num_prompt) for one in told)
        return replace(self.submission, told=tuple(values))

    @property
    def _num_prompt(self) -> int:
        return len(self.submission.prompt.token_ids)

    def _usage(self, told: _Told, num_tokens: int | None) -> Usage:
        num_output = len(told.output_ids) if num_tokens is None else min(num_tokens, len(told.output_ids))
        if told.explanation is None:
            return Usage(self._num_prompt, num_output)
        return Usage.of(told.explanation, num_output)


def _value(told: _Told, num_prompt: int) -> ToldChoice:
    done = num_prompt if told.output_ids else told.num_prompt_done
    return ToldChoice(tuple(told.output_ids), told.explanation, done, told.has_left_queue)


__all__ = ("OpenWork",)
