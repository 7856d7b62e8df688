"""A constraint over a scripted matcher: a failure is raised by `allowed`."""

from concurrent.futures import Future
from typing import Any

import pytest

from adapters.llguidance.compiler import LlguidanceConstraint
from application.services.lane import Lane
from domain.errors import ComputeFailed

END = 5


class Panic(BaseException):
    """The exception that a panic in Rust becomes."""


class ToyMatcher:
    """Allows tokens 0 to 3, once `error` is set raises it."""

    def __init__(self) -> None:
        self.mask = b"\x0f"
        self.error: BaseException | None = None

    def consume_token(self, token_id: int) -> bool:
        return True

    def compute_bitmask(self) -> bytes:
        if self.error is not None:
            raise self.error
        return self.mask

    def is_error(self) -> bool:
        return False

    def is_stopped(self) -> bool:
        return False

    def is_accepting(self) -> bool:
        return False


class Immediate(Lane):
    """A lane that runs what is submitted at once."""

    def __init__(self) -> None:
        super().__init__("immediate", 0)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def constraint_over(matcher: Any) -> LlguidanceConstraint:
    return LlguidanceConstraint(Immediate(), lambda: matcher, frozenset({END}), lambda: None)


@pytest.mark.parametrize("error", [ComputeFailed("no such luck"), ValueError("no such luck"), Panic("no such luck")])
def test_a_failed_mask_is_raised_by_allowed(error: BaseException):
    matcher = ToyMatcher()
    constraint = constraint_over(matcher)
    matcher.error = error
    constraint.accept(0)
    assert constraint.poll()
    for _ in range(2):
        with pytest.raises(ComputeFailed, match="no such luck"):
            constraint.allowed()
    with pytest.raises(ComputeFailed, match="no such luck"):
        constraint.accept(0)


def test_no_token_at_all_is_a_dead_end():
    matcher = ToyMatcher()
    constraint = constraint_over(matcher)
    matcher.mask = b"\x00"
    constraint.accept(0)
    with pytest.raises(ComputeFailed, match="dead end"):
        constraint.allowed()
