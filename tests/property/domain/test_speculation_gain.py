"""The chosen depth is the best by the table, and drafting costs at most what the credit allows."""

import random
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.speculation.acceptance import Acceptance
from domain.speculation.gain import ALLOWANCE, MARGIN, MOST_CREDIT, DepthControl, WidthCosts, depth_of

ROWS, WIDTHS = (1, 2, 4), (1, 2, 3, 5, 9)

milliseconds = st.floats(0.1, 100)


@st.composite
def tables(draw: st.DrawFn, refeeds: bool | None = None) -> WidthCosts:
    measured = {(rows, width): draw(milliseconds) for rows in ROWS for width in WIDTHS}
    again = draw(st.booleans()) if refeeds is None else refeeds
    return WidthCosts.measured(measured, draft_ms=draw(st.floats(0, 20)), refeeds=again)


probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=4)
depths = st.integers(0, 12)


def rate(costs: WidthCosts, accepted: list[float], depth: int, is_drafting: bool) -> float:
    """Expected tokens a row and millisecond, by the probability of each outcome."""
    rows, together = len(accepted), prod(accepted)
    tokens = milliseconds = 0.0
    for count in range(depth + 1):
        chance = together**count * (1 - together if count < depth else 1)
        refeed = costs.cost(rows, 1 + count) if costs.refeeds and count < depth else 0.0
        tokens += chance * (1 + count)
        milliseconds += chance * (costs.cost(rows, 1 + depth) + refeed + depth * costs.draft_ms * is_drafting)
    return tokens / milliseconds


@given(tables(), probabilities, depths, st.booleans())
def test_the_depth_is_the_best_of_all_and_never_one_that_loses(
    costs: WidthCosts, accepted: list[float], most: int, is_drafting: bool
):
    depth = depth_of(costs, accepted, most, is_drafting=is_drafting)
    plain = rate(costs, accepted, 0, is_drafting)
    others = [rate(costs, accepted, other, is_drafting) for other in range(1, min(most, costs.most_depth) + 1)]
    assert 0 <= depth <= min(most, costs.most_depth)
    if depth:
        assert others[depth - 1] >= MARGIN * plain * 0.999
        assert others[depth - 1] >= max(others) * 0.999
    else:
        assert max(others, default=0) <= MARGIN * plain * 1.001


@given(tables(refeeds=False), probabilities, st.floats(0, 1), depths)
def test_more_acceptance_never_shortens_a_draft(costs: WidthCosts, accepted: list[float], more: float, most: int):
    likelier = [probability + (1 - probability) * more for probability in accepted]
    assert depth_of(costs, likelier, most) >= depth_of(costs, accepted, most)


@given(tables())
def test_the_table_never_favours_a_wider_pass(costs: WidthCosts):
    for rows in range(1, ROWS[-1] + 1):
        by_width = [costs.cost(rows, width) for width in range(1, WIDTHS[-1] + 1)]
        assert by_width == sorted(by_width)
    for width in range(1, WIDTHS[-1] + 1):
        by_rows = [costs.cost(rows, width) for rows in range(1, ROWS[-1] + 1)]
        assert by_rows == pytest.approx(sorted(by_rows))


def decode(control: DepthControl, truths: list[float], is_drafting: bool, seed: int) -> tuple[float, float]:
    """Decodes until each of `truths`, the real acceptance of one token, has been reached. Returns the steps' cost and
    that of plain decoding."""
    noise, acceptance, costs = random.Random(seed), Acceptance(), control.costs
    spent, position = 0.0, 0
    while position < len(truths):
        depth = control.depth([acceptance.probability], len(truths) - position - 1, is_drafting=is_drafting)
        accepted = 0
        while accepted < depth and noise.random() < truths[position + accepted]:
            accepted += 1
        spent += costs.cost(1, 1 + depth) + depth * costs.draft_ms * is_drafting
        if costs.refeeds and accepted < depth:
            spent += costs.cost(1, 1 + accepted)
        acceptance.observe(depth, accepted)
        control.record(1, depth, accepted, is_drafting=is_drafting)
        position += 1 + accepted
    return spent, position * costs.cost(1, 1)


@given(tables(), st.lists(st.tuples(st.integers(1, 200), st.floats(0, 1)), max_size=5), st.booleans(), st.integers())
def test_the_loss_is_bounded_at_any_history_of_acceptance(
    costs: WidthCosts, stretches: list[tuple[int, float]], is_drafting: bool, seed: int
):
    truths = [chance for length, chance in stretches for _ in range(length)]
    control = DepthControl(costs)
    spent, plain = decode(control, truths, is_drafting, seed)
    assert spent <= plain * (1 + ALLOWANCE) + MOST_CREDIT * costs.cost(1, 1) * 1.001
    assert control.credit >= -0.001


CPU = {(1, 1): 9.4, (1, 2): 12.1, (1, 3): 14.0, (1, 5): 14.5, (1, 8): 17.8, (1, 16): 22.3}
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
    ],
)
def test_speed_relative_to_plain_decoding(truths: list[float], refeeds: bool, at_least: float, seed: int):
    control = DepthControl(WidthCosts.measured(CPU, draft_ms=0.5, refeeds=refeeds))
    spent, plain = decode(control, truths, is_drafting=True, seed=seed)
    assert plain / spent >= at_least
