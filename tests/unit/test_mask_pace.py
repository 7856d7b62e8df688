"""Who makes a sequence's masks, by what the last ones took; a grammar that turns dear holds nobody up for long."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from adapters.llguidance.constraint import LlguidanceConstraint
from adapters.llguidance.mask_pace import CHEAP_S, DEAR_S, MaskPace
from adapters.llguidance.rounds import Rounds
from application.ports.token_constraint import AllowedTokens
from application.services.lane import Lane
from domain.errors import ComputeFailed

END = 5
QUICK, SLOW = 0.1 * CHEAP_S, 1.5 * DEAR_S


class Panic(BaseException):
    """What a library in Rust raises at its end."""


class ToyMatcher:
    """Allows tokens 0 to 3. `costs`: of each mask in turn, by `clock`; an exception is raised instead."""

    def __init__(self, costs: list[float | BaseException]) -> None:
        self._costs = costs
        self._now = 0.0
        self.mask = b"\x0f"

    def clock(self) -> float:
        return self._now

    def consume_token(self, token_id: int) -> bool:
        return True

    def compute_bitmask(self) -> bytes:
        cost = self._costs.pop(0) if self._costs else QUICK
        if isinstance(cost, BaseException):
            raise cost
        self._now += cost
        return self.mask

    def is_error(self) -> bool:
        return False

    def is_stopped(self) -> bool:
        return False

    def is_accepting(self) -> bool:
        return False


class CountingWorkers(Lane):
    """Does what it is asked at once, and counts it."""

    def __init__(self) -> None:
        super().__init__("counting", 0)
        self.num_asked = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.num_asked += 1
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def held(matcher: Any, workers: CountingWorkers) -> LlguidanceConstraint:
    return LlguidanceConstraint(
        workers, Rounds(workers), lambda: matcher, frozenset({END}), lambda: None, cpu_s=matcher.clock
    )


def asked_by_token(costs: list[float | BaseException], num_tokens: int) -> list[int]:
    """How many masks workers were asked for after each token, the first one included."""
    workers, asked = CountingWorkers(), list[int]()
    constraint = held(ToyMatcher(costs), workers)
    for _ in range(num_tokens):
        constraint.accept(0)
        constraint.allowed()
        asked.append(workers.num_asked)
    return asked


def test_cheap_masks_are_handed_to_nobody():
    assert asked_by_token([], 50) == [1] * 50


def test_after_a_dear_mask_workers_make_them_until_some_were_cheap():
    assert asked_by_token([QUICK, QUICK, SLOW], 8) == [1, 1, 2, 3, 4, 5, 5, 5]


def test_a_first_mask_that_is_dear_held_nobody_up():
    assert asked_by_token([SLOW], 200)[-1] <= 30


def test_masks_that_are_dear_on_average_stay_with_workers():
    assert asked_by_token([2 * CHEAP_S] * 300, 299)[-1] > 250


def test_a_hostile_grammar_holds_up_who_asks_a_handful_of_times():
    """One that is cheap until the next mask would be made by who asks, and dear then."""
    pace, num_held_up, num_masks = MaskPace(), 0, 100_000
    for _ in range(num_masks):
        num_held_up += pace.is_cheap
        pace.record(SLOW if pace.is_cheap else QUICK)
    assert 2 <= num_held_up <= 9


def test_the_same_mask_is_the_same_value():
    matcher = ToyMatcher([])
    constraint = held(matcher, CountingWorkers())
    first = constraint.allowed()
    constraint.accept(0)
    assert constraint.allowed() is first
    matcher.mask = b"\x07"
    constraint.accept(0)
    assert constraint.allowed() == AllowedTokens(b"\x07")


@pytest.mark.parametrize("error", [ComputeFailed("no such luck"), ValueError("no such luck"), Panic("no such luck")])
def test_what_fails_here_is_told_where_a_workers_failure_is(error: BaseException):
    constraint = held(ToyMatcher([QUICK, error]), CountingWorkers())
    constraint.accept(0)
    assert constraint.poll()
    for _ in range(2):
        with pytest.raises(ComputeFailed, match="no such luck"):
            constraint.allowed()
    with pytest.raises(ComputeFailed, match="no such luck"):
        constraint.accept(0)


def test_no_token_at_all_is_a_dead_end():
    matcher = ToyMatcher([])
    constraint = held(matcher, CountingWorkers())
    matcher.mask = b"\x00"
    constraint.accept(0)
    with pytest.raises(ComputeFailed, match="dead end"):
        constraint.allowed()
