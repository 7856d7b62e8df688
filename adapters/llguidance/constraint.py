"""One sequence's matcher: every call of the library in a worker, one after the other, and the compute thread's view.

compute thread   accept(token i)      ...the forward pass of token i is under way...      allowed()
worker                      consume it, compute the mask of token i+1

Rows of a batch accept their tokens one after the other, and share a worker for it (`rounds`).
"""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from adapters.llguidance.rounds import Rounds
from application.ports.token_constraint import AllowedTokens
from application.services.lane import Lane
from domain.errors import ComputeFailed, ServerUnavailable

if TYPE_CHECKING:
    from llguidance import LLMatcher

MASK_TIMEOUT_S = 2.0
"""A mask takes from a tenth of a millisecond to some tens; whoever shares the batch waits for it. Counted from where it
was asked for: several that hang in one batch hold it up for as long as one."""

COMPILE_TIMEOUT_S = 30.0
"""With reading the model's tokens, for the first one of a model."""


class LlguidanceConstraint:
    """See the port. `make_matcher` runs in a worker of `lane`; `on_ready` there too, once the first mask or an error is
    known."""

    def __init__(
        self,
        lane: Lane,
        rounds: Rounds[AllowedTokens],
        make_matcher: Callable[[], "LLMatcher"],
        eos_token_ids: frozenset[int],
        on_ready: Callable[[], None],
    ) -> None:
        self._rounds = rounds
        self._matcher: LLMatcher | None = None
        self._eos_token_ids = eos_token_ids
        self._give_up_s = monotonic() + COMPILE_TIMEOUT_S
        self._due_s: float | None = None
        self._next: Future[AllowedTokens] = lane.submit(self._begin, make_matcher)
        self._next.add_done_callback(lambda _: on_ready())

    def poll(self) -> bool:
        if not self._next.done() and monotonic() > self._give_up_s:
            self._fail(f"compiling the grammar took more than {COMPILE_TIMEOUT_S:g} s")
        return self._next.done()

    def allowed(self) -> AllowedTokens:
        try:
            due_s = self._due_s
            return self._next.result(MASK_TIMEOUT_S if due_s is None else max(0.0, due_s - monotonic()))
        except TimeoutError:
            self._fail(f"the grammar did not say within {MASK_TIMEOUT_S:g} s what may follow")  # nobody waits twice
            return self._next.result()
        except CancelledError:
            raise ComputeFailed("the server is stopping") from None

    def accept(self, token_id: int) -> None:
        if not self.allowed().allows(token_id):
            raise ComputeFailed(f"token {token_id} is not what the grammar allows here")
        if token_id in self._eos_token_ids:
            self._next = _known(_only(self._eos_token_ids))
            return
        self._due_s = monotonic() + MASK_TIMEOUT_S
        try:
            self._next = self._rounds.submit(partial(self._advance, token_id))
        except ServerUnavailable:
            raise ComputeFailed("the server is stopping") from None

    def _fail(self, why: str) -> None:
        self._next = Future()
        self._next.set_exception(ComputeFailed(why))

    def _begin(self, make_matcher: Callable[[], "LLMatcher"]) -> AllowedTokens:
        self._matcher = make_matcher()
        return self._look()

    def _advance(self, token_id: int) -> AllowedTokens:
        assert self._matcher is not None
        self._matcher.consume_token(token_id)
        return self._look()

    def _look(self) -> AllowedTokens:
        assert self._matcher is not None
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise ComputeFailed(
                f"the grammar failed: {self._matcher.get_error().partition('<non-verbose/>')[0].strip()}"
            )
        if self._matcher.is_stopped() and self._matcher.is_accepting():
            return _only(self._eos_token_ids)
        if self._matcher.is_accepting():
            mask = _with(mask, self._eos_token_ids)
        if not any(mask):
            raise ComputeFailed("the grammar is at a dead end: no token may follow")
        return AllowedTokens(mask)


def _known(allowed: AllowedTokens) -> "Future[AllowedTokens]":
    future: Future[AllowedTokens] = Future()
    future.set_result(allowed)
    return future


def _only(token_ids: frozenset[int]) -> AllowedTokens:
    return AllowedTokens(_with(b"", token_ids), must_end=True)


def _with(mask: bytes, token_ids: frozenset[int]) -> bytes:
    bits = bytearray(mask)
    bits.extend(bytes(max(0, max(token_ids, default=0) // 8 + 1 - len(bits))))
    for id in token_ids:
        bits[id // 8] |= 1 << id % 8
    return bytes(bits)


__all__ = ("MASK_TIMEOUT_S", "LlguidanceConstraint")
