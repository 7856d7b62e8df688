"""The chosen depth is the best by the table, and drafts that are wrong cost little at any history of acceptance."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.speculation.gain import MARGIN, MOST_DEPTH, WIDTHS, DepthControl, WidthCosts

milliseconds = st.floats(0.1, 100)
passes = st.lists(milliseconds, min_size=len(WIDTHS), max_size=len(WIDTHS))


@st.composite
def tables(draw: st.DrawFn, refeeds: bool | None = None) -> WidthCosts:
    again = draw(st.booleans()) if refeeds is None else refeeds
    return WidthCosts.measured([draw(passes), draw(passes)], draft_ms=draw(st.floats(0, 20)), refeeds=again)


rows = st.integers(1, 4)
probabilities = st.floats(0, 1)
depths = st.integers(0, 20)


def rate(costs: WidthCosts, rows: int, accepted: float, depth: int, is_own: bool) -> float:
    """Expected tokens a row and millisecond, by the probability of each outcome."""
    tokens = milliseconds = 0.0
    for count in range(depth + 1):
        chance = accepted**count * (1 - accepted if count < depth else 1)
        refeed = costs.cost(rows, 1 + count) if costs.refeeds and count < depth else 0.0
        tokens += chance * (1 + count)
        milliseconds += chance * (costs.cost(rows, 1 + depth) + refeed + depth * costs.draft_ms * is_own)
    return tokens / milliseconds


@given(tables(), rows, probabilities, depths, st.booleans())
def test_the_depth_is_the_best_of_all_and_never_one_that_loses(
    costs: WidthCosts, rows: int, accepted: float, most: int, is_own: bool
):
    control = DepthControl(costs)
    control.own_acceptance = accepted ** (1 / rows) if is_own else 0.5
    depth = control.depth(rows, most, None if is_own else accepted)
    most = min(most, MOST_DEPTH)
    plain = rate(costs, rows, accepted, 0, is_own)
    others = [rate(costs, rows, accepted, other, is_own) for other in range(1, most + 1)]
    assert 0 <= depth <= most
    if depth:
        assert others[depth - 1] >= MARGIN * plain * 0.999
        assert others[depth - 1] >= max(others) * 0.999
    else:
        assert max(others, default=0) <= MARGIN * plain * 1.001


@given(tables(refeeds=False), rows, probabilities, probabilities, depths)
def test_more_acceptance_never_shortens_a_draft(costs: WidthCosts, rows: int, accepted: float, more: float, most: int):
    control, likelier = DepthControl(costs), accepted + (1 - accepted) * more
    assert control.depth(rows, most, likelier) >= control.depth(rows, most, accepted)


def decode(control: DepthControl, truths: list[float], seed: int) -> tuple[float, float]:
    """Decodes with the model's own drafter until each of `truths`, the real acceptance of one token, has been reached.
    Returns the steps' cost and that of plain decoding."""
    noise, costs = random.Random(seed), control.costs
    spent, position = 0.0, 0
    while position < len(truths):
        depth = control.depth(1, len(truths) - position - 1)
        accepted = 0
        while accepted < depth and noise.random() < truths[position + accepted]:
            accepted += 1
        ms = costs.cost(1, 1 + depth) + depth * costs.draft_ms
        if costs.refeeds and accepted < depth:
            ms += costs.cost(1, 1 + accepted)
        control.record(1, ms, depth, accepted, is_own=depth > 0)
        spent += ms
        position += 1 + accepted
    return spent, position * costs.cost(1, 1)


ONE = (9.4, 12.1, 14.0, 14.5, 17.8, 22.3)
REWRITING, NOVEL = [0.96] * 1000, [0.0] * 1000
ALTERNATING = ([0.96] * 100 + [0.0] * 100) * 5


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("truths", "refeeds", "at_least"),
    [
        (REWRITING, False, 3.0),
        (REWRITING, True, 1.7),
        (ALTERNATING, False, 1.2),
        (ALTERNATING, True, 1.0),
        (NOVEL + REWRITING, False, 1.4),
        (NOVEL + REWRITING, True, 1.15),
        (NOVEL, False, 0.98),
        (NOVEL, True, 0.98),
        (NOVEL * 10, False, 0.985),
        (NOVEL * 10, True, 0.985),
    ],
)
def test_speed_relative_to_plain_decoding(truths: list[float], refeeds: bool, at_least: float, seed: int):
    control = DepthControl(WidthCosts.measured([ONE, ONE], draft_ms=0.5, refeeds=refeeds))
    spent, plain = decode(control, truths, seed=seed)
    assert plain / spent >= at_least
