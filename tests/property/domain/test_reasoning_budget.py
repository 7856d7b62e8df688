"""A reasoning budget, over any answer: no more is reasoned, the end comes whole, and all else is left alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from application.ports.token_constraint import AllowedTokens
from application.services.token_side.constraints import AnswerConstraint
from domain.errors import ComputeFailed, InvalidRequest
from domain.request.reasoning_budget import ReasoningBudget, ReasoningLimit, ReasoningMarks
from tests.support.text.toy_constraints import FakeConstraint

OPEN, END, EOS, VOCAB = (1, 2), (3, 1, 4), 5, 6
"""Marks that share a token, so that an end may be broken off and begin again."""


def constraint(num_tokens: int, *, is_open: bool) -> AnswerConstraint:
    budget = ReasoningBudget(num_tokens, ReasoningMarks(OPEN, END, is_open))
    return AnswerConstraint(budget, VOCAB, frozenset({EOS}))


def ids_of(allowed: AllowedTokens) -> set[int]:
    return {id for id in range(VOCAB + 20) if allowed.allows(id)}


def said(held: AnswerConstraint, wanted: list[int]) -> list[int]:
    """What is said of what a model wants to say: where it may not, it says the one token that may come."""
    out: list[int] = []
    for token in wanted:
        allowed = ids_of(held.allowed())
        assert token in allowed or len(allowed) == 1
        out.append(token if token in allowed else allowed.pop())
        held.accept(out[-1])
    return out


def spans(tokens: list[int], *, is_open: bool) -> list[int]:
    """How many tokens each reasoning has, with its end as far as it came; found otherwise than the meter finds them."""
    found, at = list[int](), 0
    while True:
        if not is_open:
            opened = next((i for i in range(at, len(tokens)) if tuple(tokens[i : i + 2]) == OPEN), None)
            if opened is None:
                return found
            at = opened + len(OPEN)
        closed = next((i for i in range(at, len(tokens)) if tuple(tokens[i : i + 3]) == END), None)
        if closed is None:
            return [*found, len(tokens) - at]
        found.append(closed + len(END) - at)
        at, is_open = closed + len(END), False


@given(wanted=st.lists(st.integers(0, EOS - 1), max_size=60), num_tokens=st.integers(0, 12), is_open=st.booleans())
def test_no_more_is_reasoned_than_the_budget_and_its_ends(wanted: list[int], num_tokens: int, is_open: bool) -> None:
    out = said(constraint(num_tokens, is_open=is_open), wanted)
    reasoned = spans(out, is_open=is_open)
    assert sum(reasoned) <= num_tokens + len(END) * len(reasoned)
    within = sum(spans(wanted, is_open=is_open)) <= num_tokens
    assert (out == wanted) or not within


def test_the_end_is_forced_once_and_the_text_behind_it_is_free() -> None:
    assert said(constraint(2, is_open=True), [0, 0, 0, 0, 0, 0, 0]) == [0, 0, *END, 0, 0]


def test_an_end_that_the_model_has_begun_is_gone_on_with() -> None:
    assert said(constraint(2, is_open=True), [0, 3, 0, 0, 0]) == [0, *END, 0]


def test_a_model_that_opens_its_reasoning_itself_is_held_from_there_on() -> None:
    assert said(constraint(1, is_open=False), [0, 1, 2, 0, 0, 0, 0, 0]) == [0, *OPEN, 0, *END, 0]


def test_no_budget_ends_the_reasoning_before_it_begins() -> None:
    assert said(constraint(0, is_open=True), [0] * 4) == [*END, 0]


def test_what_is_not_allowed_is_refused_and_after_the_end_there_is_only_the_end() -> None:
    held = constraint(0, is_open=True)
    with pytest.raises(ComputeFailed):
        held.accept(0)
    held = constraint(9, is_open=False)
    held.accept(EOS)
    assert (ids_of(held.allowed()), held.allowed().must_end) == ({EOS}, True)


def test_a_grammar_that_does_not_allow_the_end_has_the_last_word() -> None:
    with ThreadPoolExecutor(1) as workers:
        grammar = FakeConstraint(workers, frozenset({bytes((0, 3))}), frozenset({EOS}), lambda: None)
        budget = ReasoningBudget(0, ReasoningMarks((1,), (3,), is_open=True))
        held = AnswerConstraint(budget, VOCAB, frozenset({EOS}), grammar)
        assert ids_of(held.allowed()) == {0}
        held.accept(0)
        assert ids_of(held.allowed()) == {3}
        held.accept(3)
        assert ids_of(held.allowed()) == {EOS}


def test_a_limit_below_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest) as error:
        ReasoningLimit(-1)
    assert error.value.param == "reasoning_budget"
