"""A limit on the reasoning tokens of an answer.

    outside ──open──► inside ──end──► outside
                      counts its tokens; once the budget is spent only the end may come

Reasoning is recognised by the tokens that open and end it, anywhere in the answer; the budget covers all of it.
"""

from dataclasses import dataclass

from domain.errors import require


@dataclass(frozen=True, slots=True)
class ReasoningLimit:
    """A client's limit. `is_firm`: a model whose reasoning cannot be ended is an error; otherwise its reasoning is not
    limited."""

    num_tokens: int
    is_firm: bool = True

    def __post_init__(self) -> None:
        require(self.num_tokens >= 0, "reasoning_budget", "must not be negative")
        require(self.num_tokens < 2**63, "reasoning_budget", "must be a 64-bit integer")


NO_REASONING = ReasoningLimit(0, is_firm=False)
"""The limit for a client that switches reasoning off, with a template that has no switch."""


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The tokens that open and end a model's reasoning. `is_open`: its prompt has opened it."""

    open_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """The budget of one answer: after `num_tokens` of reasoning, `marks.end_ids` are forced."""

    num_tokens: int
    marks: ReasoningMarks


class ReasoningMeter:
    """Counts the reasoning tokens of one answer. Sans-io."""

    __slots__ = ("_budget", "_is_open", "_matched", "_num_spent")

    def __init__(self, budget: ReasoningBudget) -> None:
        self._budget = budget
        self._is_open = budget.marks.is_open
        self._matched = 0  # the number of latest tokens that begin the next mark
        self._num_spent = 0

    @property
    def forced(self) -> int | None:
        """The token that has to come next; None where any may. An end mark that the model has begun is continued."""
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
    """Returns the length of the longest end of the tail that begins the mark."""
    return next(length for length in range(len(tail), -1, -1) if tail[len(tail) - length :] == mark[:length])
