"""The user's choice of drafters."""

import pytest

from domain.speculation.drafter import Drafter, SpeculationMode


@pytest.mark.parametrize(
    ("mode", "allowed"),
    [
        ("auto", {"ngram", "prediction", "mtp", "draft"}),
        ("off", set[str]()),
        ("ngram", {"ngram", "prediction"}),
        ("mtp", {"mtp"}),
        ("draft", {"draft"}),
    ],
)
def test_a_mode_allows_the_drafters_that_it_names(mode: str, allowed: set[str]):
    assert {drafter.value for drafter in Drafter if SpeculationMode(mode).allows(drafter)} == allowed
