"""How many tokens an answer may reason for, and when its reasoning has to end.

    outside ──open──► inside ──end──► outside
                      counts its tokens; once the budget is spent only the end may come

Reasoning is told by the tokens that open and end it, wherever in the answer they come; what was spent counts over all
of it.
"""

from dataclasses import dataclass

from domain.errors import require


@dataclass(frozen=True, slots=True)
class ReasoningLimit:
    """What a client asks for. `is_firm`: a model whose reasoning cannot be ended is an error; else it reasons on."""

    num_tokens: int
    is_firm: bool = True

    def __post_init__(self) -> None:
        require(self.num_tokens >= 0, "reasoning_budget", "must not be negative")


NO_REASONING = ReasoningLimit(0, is_firm=False)
"""What a client asks for who switches reasoning off, for templates that have no switch."""


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The tokens that open and end a model's reasoning. `is_open`: its prompt has opened it."""

    open_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """`num_tokens` of reasoning; then `marks.end_ids` come, whatever the model would say."""

    num_tokens: int
    marks: ReasoningMarks


class ReasoningMeter:
    """Follows one answer. Sans-io."""

    __slots__ = ("_budget", "_is_open", "_matched", "_num_spent")

    def __init__(self, budget: ReasoningBudget) -> None:
        self._budget = budget
        self._is_open = budget.marks.is_open
        self._matched = 0  # so many of the latest tokens begin the next mark
        self._num_spent = 0

    @property
    def forced(self) -> int | None:
        """The token that has to come next; None where any may. An end that the model has begun is gone on with."""
        if not self._is_open or self._num_spent < self._budget.num_tokens:
            return None
        return self._budget.marks.end_ids[self._matched]

    def accept(self, token_id: int) -> None:
        marks = self._budget.marks
        mark = marks.end_ids if self._is_open else marks.open_ids
        self._num_spent += self._is_open
        self._matched = _overlap((*mark[: self._matched], token_id), mark)
        if self._matched == len(mark):
            self._is_open, self._matched = not self._is_open, 0


def _overlap(tail: tuple[int, ...], mark: tuple[int, ...]) -> int:
    """The longest end of the tail that is a beginning of the mark."""
    return next(length for length in range(len(tail), -1, -1) if tail[len(tail) - length :] == mark[:length])
