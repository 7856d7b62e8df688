"""Lookup finds what a comparison of all places finds, and never costs more than the credit allows."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.id_row import IdRow
from domain.speculation.gain import ALLOWANCE, MOST_CREDIT, DepthControl, WidthCosts
from domain.speculation.lookup import LONGEST, SHORTEST, NgramLookup

ids = st.lists(st.integers(0, 3), max_size=40)


def matches(searched: Sequence[int], end: Sequence[int]) -> dict[int, int]:
    """Returns the length of the match before each place of a text that has one, by comparing all places."""
    lengths: dict[int, int] = {}
    for place in range(1, len(searched)):
        length = 0
        while length < min(place, len(end), LONGEST) and searched[place - 1 - length] == end[-1 - length]:
            length += 1
        if length >= SHORTEST:
            lengths[place] = length
    return lengths


@given(ids, ids.filter(bool), ids)
def test_the_proposal_follows_the_longest_match_the_most_recent_of_equal_ones(
    prompt: list[int], output: list[int], prediction: list[int]
):
    own, expected, best, is_own = prompt + output, None, 0, False
    for searched in (prediction, own):
        for place, length in matches(searched, own).items():
            if length > best or (length == best and (searched is own) is is_own):
                expected, best, is_own = (searched[place],), length, searched is own
    proposal = NgramLookup(IdRow(prompt), output_ids=output, prediction=prediction).propose(1)
    assert (proposal.token_ids if proposal else None) == expected


@given(ids, st.lists(st.integers(0, 3), min_size=1, max_size=80), st.integers(1, 20))
def test_a_followed_proposal_is_what_the_text_repeats(prompt: list[int], output: list[int], most: int):
    lookup = NgramLookup(IdRow(prompt))
    for position in range(len(output)):
        before = prompt + output[:position]
        proposal = lookup.propose(most)
        if proposal:
            assert 1 <= len(proposal.token_ids) <= most
            assert 0 <= proposal.probability <= 1
            assert tuple(before[-SHORTEST:]) in set(zip(*(before[start:-1] for start in range(SHORTEST)), strict=False))
        lookup.extend(output[position : position + 1])


@given(ids, ids, st.data())
def test_tokens_may_come_one_by_one_or_together(prompt: list[int], output: list[int], data: st.DataObject):
    one_by_one, together = NgramLookup(IdRow(prompt)), NgramLookup(IdRow(prompt))
    for token in output:
        one_by_one.extend((token,))
    cut = data.draw(st.integers(0, len(output)))
    together.extend(output[:cut])
    together.extend(output[cut:])
    assert one_by_one.propose(5) == together.propose(5)


CPU = {(1, 1): 9.4, (1, 2): 12.1, (1, 3): 14.0, (1, 5): 14.5, (1, 8): 17.8, (1, 16): 22.3}


def speed(prompt: list[int], output: list[int], costs: WidthCosts) -> float:
    """Returns the speed of decoding `output` with lookup relative to plain decoding, by the table. As an engine does,
    the first token of a draft is a guess of one that is sampled already."""
    lookup, control = NgramLookup(IdRow(prompt)), DepthControl(costs)
    spent, position = 0.0, 0
    while position < len(output):
        rest = output[position:]
        proposal = lookup.propose(costs.most_depth + 1)
        depth = accepted = 0
        if proposal and proposal.token_ids[0] == rest[0]:
            depth = control.depth([proposal.probability], min(len(proposal.token_ids), len(rest)) - 1)
        while accepted < depth and proposal and proposal.token_ids[1 + accepted] == rest[1 + accepted]:
            accepted += 1
        spent += costs.cost(1, 1 + depth)
        if costs.refeeds and accepted < depth:
            spent += costs.cost(1, 1 + accepted)
        control.record(1, depth, accepted)
        lookup.extend(rest[: 1 + accepted])
        position += 1 + accepted
    return len(output) * costs.cost(1, 1) / spent


def text(length: int, num_ids: int, seed: int) -> list[int]:
    noise = random.Random(seed)
    return [noise.randrange(num_ids) for _ in range(length)]


def edited(source: list[int], every: int) -> list[int]:
    return [token + 100_000 if place % every == every - 1 else token for place, token in enumerate(source)]


SOURCE = text(1000, 5000, seed=1)
ALTERNATING = [token for at in range(0, 1000, 100) for token in (*SOURCE[at : at + 100], *text(100, 5000, seed=at + 2))]


@pytest.mark.parametrize("refeeds", [False, True])
@pytest.mark.parametrize(
    ("output", "at_least"),
    [(edited(SOURCE, 200), 3.0), (edited(SOURCE, 20), 1.5), (ALTERNATING, 1.3), (text(1000, 5000, seed=2), 0.999)],
    ids=["five edits", "fifty edits", "alternating", "novel"],
)
def test_copied_text_is_faster_and_novel_text_is_not_slower(output: list[int], at_least: float, refeeds: bool):
    assert speed(SOURCE, output, WidthCosts.measured(CPU, refeeds=refeeds)) >= at_least


@given(st.integers(2, 30), st.integers(0, 1000), st.integers(0, 3000), st.booleans())
def test_coincidences_cost_no_more_than_the_credit(num_ids: int, seed: int, length: int, refeeds: bool):
    costs = WidthCosts.measured(CPU, refeeds=refeeds)
    output = text(length + 1, num_ids, seed)
    most_steps = len(output) * (1 + ALLOWANCE) + MOST_CREDIT
    assert speed(text(300, num_ids, seed + 1), output, costs) >= len(output) / most_steps * 0.999
