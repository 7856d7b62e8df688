"""Lookup finds what a comparison of all places finds; copied text gains, and other text does not lose."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.id_row import IdRow
from domain.speculation.gain import MOST_DEPTH, DepthControl, WidthCosts
from domain.speculation.lookup import LENGTHS, NgramLookup

ids = st.lists(st.integers(0, 3), max_size=40)


def matches(searched: Sequence[int], end: Sequence[int]) -> dict[int, int]:
    """Returns the length (of LENGTHS) of the match before each place of a text that has one, by comparing all."""
    lengths: dict[int, int] = {}
    for place in range(1, len(searched)):
        for length in LENGTHS:
            if length <= min(place, len(end)) and searched[place - length : place] == end[-length:]:
                lengths[place] = length
    return lengths


@given(ids, ids.filter(bool), ids)
def test_the_proposal_follows_the_longest_match_the_most_recent_of_equal_ones(
    prompt: list[int], output: list[int], prediction: list[int]
):
    own, expected, best = prompt + output, None, 0
    begin = max(0, len(prompt) - LENGTHS[-1])
    for searched in (own[begin:], prediction, prompt):
        found = matches(searched, own[-LENGTHS[-1] :] if searched is prediction else own[begin:])
        longest = max(found.values(), default=0)
        if longest > best:
            best, place = longest, max(place for place, length in found.items() if length == longest)
            expected = (searched[place],)
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
            shortest = LENGTHS[0]
            assert tuple(before[-shortest:]) in set(zip(*(before[start:-1] for start in range(shortest)), strict=False))
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


ONE = (9.4, 12.1, 14.0, 14.5, 17.8, 22.3)


def speed(prompt: list[int], output: list[int], costs: WidthCosts) -> float:
    """Returns the speed of decoding `output` with lookup relative to plain decoding, by the table. As an engine does,
    the first token of a draft is a guess of one that is sampled already."""
    lookup, control = NgramLookup(IdRow(prompt)), DepthControl(costs)
    spent, position = 0.0, 0
    while position < len(output):
        rest = output[position:]
        proposal = lookup.propose(MOST_DEPTH + 1)
        depth = accepted = 0
        if proposal and proposal.token_ids[0] == rest[0]:
            depth = control.depth(1, min(len(proposal.token_ids), len(rest)) - 1, proposal.probability)
        while accepted < depth and proposal and proposal.token_ids[1 + accepted] == rest[1 + accepted]:
            accepted += 1
        ms = costs.cost(1, 1 + depth)
        if costs.refeeds and accepted < depth:
            ms += costs.cost(1, 1 + accepted)
        control.record(1, ms, depth, accepted)
        spent += ms
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
    assert speed(SOURCE, output, WidthCosts.measured([ONE, ONE], refeeds=refeeds)) >= at_least


@pytest.mark.parametrize("refeeds", [False, True])
@pytest.mark.parametrize("num_ids", [2, 5, 12, 30])
def test_coincidences_cost_little(num_ids: int, refeeds: bool):
    """Random text of few different tokens, in which every end occurred before."""
    costs = WidthCosts.measured([ONE, ONE], refeeds=refeeds)
    assert speed(text(300, num_ids, 1), text(2000, num_ids, 2), costs) >= 0.98
