"""Drafts by lookup in prompt, output and prediction."""

import tracemalloc

import pytest

from domain.id_row import IdRow
from domain.speculation.drafter import Drafter
from domain.speculation.lookup import LARGEST_ID, NgramLookup


def proposed(lookup: NgramLookup, most: int = 4) -> tuple[int, ...]:
    proposal = lookup.propose(most)
    return proposal.token_ids if proposal else ()


def test_what_followed_the_most_recent_occurrence_is_proposed():
    lookup = NgramLookup(IdRow([1, 2, 3, 10, 11, 12, 1, 2, 3, 20, 21, 22, 13, 1, 2]))
    assert proposed(lookup) == ()
    lookup.extend((3,))
    assert lookup.propose(2) == ((20, 21), Drafter.NGRAM, pytest.approx(0.4))
    lookup.extend((20, 21))
    assert proposed(lookup) == (22, 13, 1, 2)


def test_a_longer_match_goes_before_a_recent_one():
    prompt = [9, 1, 2, 3, 10, 11, 12, 13, 0, 1, 2, 3, 20, 21, 22, 0]
    lookup = NgramLookup(IdRow(prompt), output_ids=(9, 1, 2, 3))
    assert proposed(lookup) == (10, 11, 12, 13)


def test_a_match_may_begin_in_the_prompt_and_end_in_the_output():
    lookup = NgramLookup(IdRow([1, 2]), output_ids=(3, 4, 5, 0, 0, 1, 2, 3))
    assert proposed(lookup, 2) == (4, 5)


def test_a_repeating_output_is_continued_beyond_its_end():
    lookup = NgramLookup(IdRow([50, 51, 52]), output_ids=(1, 2, 3, 1, 2, 3))
    assert proposed(lookup, 8) == (1, 2, 3, 1, 2, 3, 1, 2)


def test_the_end_of_the_prompt_ends_a_proposal_and_a_match():
    lookup = NgramLookup(IdRow(range(20)), output_ids=(60, 5, 6, 7))
    assert proposed(lookup, 99) == tuple(range(8, 20))
    lookup.extend(range(8, 20))
    assert proposed(lookup) == (60, 5, 6, 7), "what followed the prompt is the output"


def test_a_prediction_is_followed_across_an_edit():
    lookup = NgramLookup(IdRow([90, 91]), output_ids=(1, 2, 3), prediction=(1, 2, 3, 4, 5, 6, 7, 8, 9))
    assert lookup.propose(3) == ((4, 5, 6), Drafter.PREDICTION, pytest.approx(0.4))
    lookup.extend((4, 99))
    assert proposed(lookup) == ()
    lookup.extend((6, 7, 8))
    assert lookup.propose(3) == ((9,), Drafter.PREDICTION, pytest.approx(0.4375))
    lookup.extend((9,))
    assert proposed(lookup) == ()


def test_the_text_that_matches_longer_goes_before_the_prediction():
    lookup = NgramLookup(IdRow([7, 1, 2, 3, 30, 31]), output_ids=(7, 1, 2, 3), prediction=(8, 1, 2, 3, 40))
    assert proposed(lookup, 2) == (30, 31)


def test_right_and_wrong_tokens_move_the_estimate_without_being_drafted():
    prompt = IdRow(range(1000))
    lookup = NgramLookup(prompt, output_ids=tuple(range(20)))
    first = lookup.propose(1)
    lookup.extend(range(20, 300))
    copying = lookup.propose(1)
    assert first is not None
    assert copying is not None
    assert (first.probability, copying.token_ids) == (0.65, (300,))
    assert copying.probability > 0.99
    for step in range(300, 900, 10):  # each coincidence of three tokens is wrong
        lookup.extend((step, step + 1, step + 2))
        assert proposed(lookup, 1) == (step + 3,)
        lookup.extend((5000,))
    lookup.extend((991, 992, 993))
    coincidence = lookup.propose(1)
    assert coincidence is not None
    assert coincidence.probability < 0.05


@pytest.mark.parametrize("given", [(), (1,), (1, 2)])
def test_a_short_or_empty_text_has_no_match(given: tuple[int, ...]):
    lookup = NgramLookup(IdRow(given), prediction=())
    assert lookup.propose(4) is None
    lookup.extend(())
    assert lookup.propose(4) is None
    assert NgramLookup(IdRow([1, 2, 3, 4, 1, 2, 3])).propose(0) is None


@pytest.mark.parametrize("id", [0, 0xD800, 0xDFFF, 0xFFFF, 0x10000, LARGEST_ID])
def test_every_id_of_a_vocabulary_is_proposed_as_it_is(id: int):
    assert proposed(NgramLookup(IdRow([1, 2, 3, id, id, 1, 2, 3])), 2) == (id, id)


def test_a_long_prompt_takes_four_bytes_a_token():
    prompt = IdRow(range(200_000))
    tracemalloc.start()
    lookup = NgramLookup(prompt)
    lookup.extend((1, 2, 3))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert proposed(lookup, 2) == (4, 5)
    assert held < 4 * len(prompt) + 20_000


def test_a_step_does_not_copy_a_long_prompt():
    lookup = NgramLookup(IdRow(range(200_000)))
    tracemalloc.start()
    for token in range(16):
        lookup.extend((token,))
        lookup.propose(16)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000
