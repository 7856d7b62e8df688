"""The decision how far to draft: measured costs, expected tokens, and a bound on what wrong drafts may cost.

A pass of width 1+K verifies K drafted tokens of every row. All rows of a group take the acceptance of the worst one, so
position i is accepted with the product over the rows of p^i. The depth with the most expected tokens per millisecond is
chosen, if it beats plain decoding by `MARGIN`.

Estimates may be wrong for any length of time, so a *credit* bounds their cost, whatever is accepted: a draft is only
verified if the credit covers its complete rejection. Plain decoding earns `ALLOWANCE` of a step for each step, accepted
drafts earn what they save, and no more than `MOST_CREDIT` is kept. What is above `PROBE_CREDIT` pays for probes of one
token where the estimate advises against drafting: a success earns credit, so the next step probes again and drafting
turns on within a few steps; after failures a probe's cost has to be earned first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from math import inf, isfinite, prod
from typing import NamedTuple

MOST_ROWS = 4
"""The most sequences that draft together: more of them seldom have drafts at the same time, and all take the acceptance
of the worst."""

MARGIN = 1.05
ALLOWANCE = 0.01
MOST_CREDIT = 4.0
"""In plain steps. With ALLOWANCE it bounds the cost of drafts that are all wrong to 2 % of 400 tokens."""

PROBE_CREDIT = MOST_CREDIT / 2

MOST_FACTOR, LEARNT_STEPS, FORGOTTEN_STEPS = 8.0, 8, 256
"""A step with a draft counts as at most so many times the table's cost, a plain one as twice what it was lately, since
it may wait for other work; an average over so many steps corrects the table; and after so many plain steps the
correction is mostly forgotten."""


@dataclass(frozen=True, slots=True)
class WidthCosts:
    """The milliseconds of a forward pass by number of rows and width (tokens a row), as measured while the model was
    loaded. Build it by `measured`.

    `rows`, `widths`: ascending, both from 1. `pass_ms`: for each of `rows` the cost at each of `widths`. `draft_ms`:
    one token drafted for each row by the model's own drafter (a head or a draft model). `refeeds`: after a rejection
    the waiting token and the accepted ones are computed once more, in a further pass (models with recurrent or windowed
    state).
    """

    rows: tuple[int, ...]
    widths: tuple[int, ...]
    pass_ms: tuple[tuple[float, ...], ...]
    draft_ms: float = 0.0
    refeeds: bool = False

    @classmethod
    def measured(
        cls, pass_ms: Mapping[tuple[int, int], float], *, draft_ms: float = 0.0, refeeds: bool = False
    ) -> "WidthCosts":
        """Returns the table of measurements by (rows, width), which must be a whole grid that begins at (1, 1).

        Noise is corrected in favour of plain decoding: a plain step costs no more than any wider pass or one of more
        rows, and another pass no less than any narrower one or one of fewer rows. Raises ValueError for a grid with
        holes or a cost that is not a positive number.
        """
        rows, widths = (tuple(sorted({key[axis] for key in pass_ms})) for axis in (0, 1))
        if not pass_ms or (rows[0], widths[0]) != (1, 1) or len(pass_ms) != len(rows) * len(widths):
            raise ValueError("pass_ms must hold every pair of its rows and widths, each from 1")
        if not all(isfinite(cost) and cost > 0 for cost in pass_ms.values()) or not 0 <= draft_ms < inf:
            raise ValueError("costs must be positive numbers of milliseconds")
        grid = [[pass_ms[row, width] for width in widths] for row in rows]
        plain = list(accumulate((min(costs) for costs in reversed(grid)), min))[::-1]
        wider = [[0.0] * (len(widths) - 1)]
        for first, costs in zip(plain, grid, strict=True):
            rising = accumulate(costs[1:], max, initial=first)
            wider.append([max(pair) for pair in zip(list(rising)[1:], wider[-1], strict=True)])
        return cls(
            rows,
            widths,
            tuple((first, *costs) for first, costs in zip(plain, wider[1:], strict=True)),
            draft_ms,
            refeeds,
        )

    @property
    def most_depth(self) -> int:
        """The largest depth whose width was measured."""
        return self.widths[-1] - 1

    def scaled(self, factor: float) -> "WidthCosts":
        """Returns the costs with every pass of a draft dearer by `factor`."""
        passes = tuple((first, *(cost * factor for cost in wider)) for first, *wider in self.pass_ms)
        return replace(self, pass_ms=passes, draft_ms=self.draft_ms * factor)

    def cost(self, rows: int, width: int) -> float:
        """Returns the milliseconds of a pass, interpolated; infinite beyond the rows and widths that were measured."""
        if not 1 <= rows <= self.rows[-1] or not 1 <= width <= self.widths[-1]:
            return inf
        return _by_width(self, rows)[width - 1]


class Outlook(NamedTuple):
    """The prospect of a draft of `depth` tokens: expected tokens a row, expected cost, and the largest loss against
    plain decoding, in milliseconds."""

    depth: int
    tokens: float
    cost_ms: float
    loss_ms: float


def outlooks(
    costs: WidthCosts, probabilities: Sequence[float], most: int, *, is_drafting: bool = False
) -> Iterator[Outlook]:
    """Yields the outlook of each depth from 1 to `most`, as far as widths were measured; none beyond the measured rows.

    `probabilities`: of each row of the group, that a position is accepted. `is_drafting`: the model's own drafter
    proposes the tokens of any row, so they cost `draft_ms` each.
    """
    rows, probability = len(probabilities), prod(probabilities)
    if not 1 <= rows <= costs.rows[-1]:
        return
    passes = _by_width(costs, rows)
    plain, tokens, reach, refed, largest_refeed = passes[0], 1.0, 1.0, 0.0, 0.0
    for depth in range(1, min(most, costs.most_depth) + 1):
        if costs.refeeds:  # the rejection after depth-1 accepted tokens, which computes them again
            refeed = passes[depth - 1]
            refed += reach * (1 - probability) * refeed
            largest_refeed = max(largest_refeed, refeed - (depth - 1) * plain)
        reach *= probability
        tokens += reach
        cost = passes[depth] + depth * costs.draft_ms * is_drafting
        yield Outlook(depth, tokens, cost + refed, cost + largest_refeed - plain)


def depth_of(costs: WidthCosts, probabilities: Sequence[float], most: int, *, is_drafting: bool = False) -> int:
    """Returns the depth with the most expected tokens per millisecond; 0 if none beats plain decoding by MARGIN. The
    arguments are those of `outlooks`."""
    return _best(costs, probabilities, outlooks(costs, probabilities, most, is_drafting=is_drafting))


class DepthControl:
    """The depths of one model's decode steps, bounded by a credit (see the module). Not thread-safe.

    Costs were measured on short sequences. If verification turns out dearer than the table says, in relation to plain
    steps (on long sequences of some devices), `costs` follows; it comes back slowly while nothing is drafted."""

    def __init__(self, costs: WidthCosts) -> None:
        self.measured = self.costs = costs
        self.credit = MOST_CREDIT
        """In plain steps of as many rows as the step that it pays for."""
        self._plain_over = self._factor = 1.0
        """The duration of plain steps as a multiple of the table's, and that of steps with drafts as one of both."""

    def depth(self, probabilities: Sequence[float], most: int, *, is_drafting: bool = False) -> int:
        """Returns the number of tokens to draft for every row in the next step, at most `most`; 0 for a plain step.
        The arguments are those of `outlooks`."""
        if not probabilities or most <= 0:
            return 0
        credit_ms = self.credit * self.costs.cost(len(probabilities), 1)
        options = list(outlooks(self.costs, probabilities, most, is_drafting=is_drafting))
        payable = [option for option in options if option.loss_ms <= credit_ms]
        depth = _best(self.costs, probabilities, payable)
        if depth or not payable or not is_drafting or self.credit < PROBE_CREDIT:
            return depth
        return int(depth_of(self.costs, [1.0] * len(probabilities), 1, is_drafting=True) > 0)

    def record(
        self, rows: int, num_proposed: int = 0, num_accepted: int = 0, *, is_drafting: bool = False, ms: float = 0.0
    ) -> None:
        """Books a step of `rows` rows. `num_proposed`: tokens verified a row, 0 for a plain step; `num_accepted`: of
        the worst row, so each has put out one token more. `is_drafting`: the model's own drafter has run. `ms`: the
        step's duration; 0 if unknown."""
        plain, earned = self.costs.cost(rows, 1), ALLOWANCE * (1 + num_accepted)
        if plain < inf:
            spent = _spent(self.costs, rows, num_proposed, num_accepted, is_drafting=is_drafting)
            earned += 1 + num_accepted - spent / plain
            if ms > 0:
                expected = _spent(self.measured, rows, num_proposed, num_accepted, is_drafting=is_drafting)
                self._learn(ms / expected, is_plain=not num_proposed)
        self.credit = min(MOST_CREDIT, self.credit + earned)

    def _learn(self, over: float, *, is_plain: bool) -> None:
        if is_plain:
            self._plain_over += (min(over, 2 * self._plain_over) - self._plain_over) / LEARNT_STEPS
            self._factor += (1 - self._factor) / FORGOTTEN_STEPS
        else:
            self._factor += (min(over / self._plain_over, MOST_FACTOR) - self._factor) / LEARNT_STEPS
        factor = max(1.0, round(self._factor, 1))
        self.costs = self.measured if factor == 1.0 else self.measured.scaled(factor)


def _spent(costs: WidthCosts, rows: int, num_proposed: int, num_accepted: int, *, is_drafting: bool) -> float:
    """Returns the milliseconds of a step by the table."""
    spent = costs.cost(rows, 1 + num_proposed) + num_proposed * costs.draft_ms * is_drafting
    if costs.refeeds and num_accepted < num_proposed:
        spent += costs.cost(rows, 1 + num_accepted)
    return spent


def _best(costs: WidthCosts, probabilities: Sequence[float], options: "Iterator[Outlook] | Sequence[Outlook]") -> int:
    best, rate = 0, MARGIN / costs.cost(len(probabilities), 1)
    for option in options:
        if option.tokens > rate * option.cost_ms:
            best, rate = option.depth, option.tokens / option.cost_ms
    return best


@lru_cache(maxsize=256)
def _by_width(costs: WidthCosts, rows: int) -> tuple[float, ...]:
    """Returns the costs of widths from 1 to the largest, at a number of rows that is not above the most measured."""
    by_rows = [_interpolated(costs.rows, column, rows) for column in zip(*costs.pass_ms, strict=True)]
    return tuple(_interpolated(costs.widths, by_rows, width) for width in range(1, costs.widths[-1] + 1))


def _interpolated(places: Sequence[int], values: Sequence[float], place: int) -> float:
    """Returns the value at a place between the first and the last of `places`, linear between two of them."""
    for (low, high), (below, above) in zip(pairwise(places), pairwise(values), strict=True):
        if low <= place <= high:
            return below + (above - below) * (place - low) / (high - low)
    return values[0]
