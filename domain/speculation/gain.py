"""The decision how far to draft: by measured costs, and by the probability that drafted tokens are accepted.

A pass of width 1+K verifies K drafted tokens of every row. All rows of a group take the acceptance of the worst one, so
position i is accepted with the product over the rows of p^i. The depth with the most expected tokens per millisecond is
chosen, if it beats plain decoding by `MARGIN`. Both sides follow what is observed:

    acceptance    a moving average; that of the model's own drafter rises while it is not used, so it is tried again
    costs         measured at load on short sequences, corrected by the durations of steps
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, isfinite

MOST_ROWS = 4
"""The most sequences that draft together: more of them seldom have drafts at the same time, and all take the acceptance
of the worst."""

WIDTHS = (1, 2, 3, 5, 9, 17)
"""The widths (tokens a row) whose passes are measured. Another one costs what the next larger one does."""

MOST_DEPTH = WIDTHS[-1] - 1

MARGIN = 1.05
OWN_PRIOR = 0.75
"""The first estimate for a multi-token-prediction head or a draft model."""

WEIGHT, RISE = 1 / 16, 1 / 1024
"""The share of one observation in an estimate of acceptance, and by which an unused one rises towards 1. A larger
weight ends drafting by chance where it pays. Trying again costs 16 / 1024 of the time at most."""

LEARNT_STEPS, FORGOTTEN_STEPS, MOST_OVER = 8, 512, 4.0
"""A correction of the costs is an average over LEARNT_STEPS, and is mostly forgotten after FORGOTTEN_STEPS without a
draft. One step counts as at most MOST_OVER times its cost, since it may have waited for other work."""


def observed(probability: float, num_proposed: int, num_accepted: int) -> float:
    """Returns the estimated probability that a position is accepted, given that all before it were, after a draft:
    moved by its accepted positions, and by the first rejected one if there is one."""
    for _ in range(num_accepted):
        probability += WEIGHT * (1 - probability)
    return probability if num_accepted >= num_proposed else probability * (1 - WEIGHT)


@dataclass(frozen=True, slots=True)
class WidthCosts:
    """The milliseconds of forward passes. Build it by `measured`.

    `pass_ms`: of WIDTHS, for one row, and for 2 to MOST_ROWS. `draft_ms`: one token drafted for each row by the model's
    own drafter (a head or a draft model). `refeeds`: after a rejection the waiting token and the accepted ones are
    computed once more (models with recurrent or windowed state).
    """

    pass_ms: tuple[tuple[float, ...], ...]
    draft_ms: float = 0.0
    refeeds: bool = False

    @classmethod
    def measured(
        cls, pass_ms: Sequence[Sequence[float]], *, draft_ms: float = 0.0, refeeds: bool = False
    ) -> "WidthCosts":
        """Returns the table of measurements. Noise is corrected in favour of plain decoding: a plain step costs no more
        than any wider pass, and another pass no less than any narrower one. Raises ValueError for too few or too many
        measurements, and for a cost that is not a positive number."""
        if [len(costs) for costs in pass_ms] != [len(WIDTHS)] * 2:
            raise ValueError("pass_ms must hold the costs of WIDTHS for one row and for several")
        if not all(isfinite(cost) and cost > 0 for costs in pass_ms for cost in costs) or not 0 <= draft_ms < inf:
            raise ValueError("costs must be positive numbers of milliseconds")
        rising = (accumulate((min(costs), *costs[1:]), max) for costs in pass_ms)
        return cls(tuple(map(tuple, rising)), draft_ms, refeeds)

    def cost(self, rows: int, width: int) -> float:
        """Returns the milliseconds of a pass of 1 to MOST_ROWS rows."""
        return self.pass_ms[rows > 1][bisect_left(WIDTHS, width)]


class DepthControl:
    """The depths of one model's decode steps. Not thread-safe.

    `own_acceptance`: the estimate for the model's own drafter, of all its sequences."""

    def __init__(self, costs: WidthCosts) -> None:
        self.costs = costs
        self.own_acceptance = OWN_PRIOR
        self._was_plain = False
        self._slowness = self._dearness = 1.0
        """The duration of plain steps as a multiple of the table's, and that of steps with drafts as one of both."""

    def depth(self, rows: int, most: int, accepted: float | None = None) -> int:
        """Returns the number of tokens to draft for every row in the next step, at most `most`; 0 for a plain step.

        `accepted`: the probability that a position is accepted in all rows; None for the model's own drafter."""
        is_own = accepted is None
        accepted = self.own_acceptance**rows if accepted is None else accepted
        costs, dearness = self.costs, max(1.0, self._dearness)
        best, rate = 0, MARGIN / costs.cost(rows, 1)
        tokens, reach, refed = 1.0, 1.0, 0.0
        for depth in range(1, min(most, MOST_DEPTH) + 1):
            refed += reach * (1 - accepted) * costs.cost(rows, depth) * costs.refeeds
            reach *= accepted
            tokens += reach
            cost = dearness * (costs.cost(rows, 1 + depth) + depth * costs.draft_ms * is_own + refed)
            if tokens > rate * cost:
                best, rate = depth, tokens / cost
        return best

    def record(
        self, rows: int, ms: float, num_proposed: int = 0, num_accepted: int = 0, *, is_own: bool = False
    ) -> None:
        """Takes a step of `rows` rows into account, which took `ms` milliseconds. `num_proposed`: tokens verified a
        row, 0 for a plain step; `num_accepted`: of the worst row. `is_own`: the model's own drafter proposed them."""
        if is_own:  # one row had a wrong token where the draft ended, the others mostly a right one
            num_right = min(rows * (num_accepted + 1) - 1, rows * num_proposed)
            self.own_acceptance = observed(self.own_acceptance, rows * num_proposed, num_right)
        elif not num_proposed:
            self.own_acceptance += RISE * (1 - self.own_acceptance)
        table_ms = self.costs.cost(rows, 1 + num_proposed) + num_proposed * self.costs.draft_ms * is_own
        if self.costs.refeeds and num_accepted < num_proposed:
            table_ms += self.costs.cost(rows, 1 + num_accepted)
        if num_proposed and self._was_plain:  # it waits for the pass that the plain step has queued
            table_ms += self.costs.cost(rows, 1)
        over = min(ms / table_ms / self._slowness, MOST_OVER)
        if num_proposed:
            self._dearness += (over - self._dearness) / LEARNT_STEPS
        elif self._was_plain and over > 0:
            self._slowness *= 1 + (over - 1) / LEARNT_STEPS
            self._dearness += (1 - self._dearness) / FORGOTTEN_STEPS
        self._was_plain = not num_proposed
