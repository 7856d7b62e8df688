"""One sequence's matcher: compiled by a worker, followed by the compute thread.

    worker           compile the grammar, mask of token 0
    compute thread   accept(token i): consume it, mask of token i+1     while the device computes the forward pass of i

A mask takes some five microseconds, handing it to a worker fifty to two hundred; the library's limits bound what a
hostile grammar can make of it (`library.LIMITS`, some 20 ms).
"""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from time import monotonic
from typing import TYPE_CHECKING

from application.ports.token_constraint import AllowedTokens
from application.services.lane import Lane
from domain.errors import ComputeFailed

if TYPE_CHECKING:
    from llguidance import LLMatcher

COMPILE_TIMEOUT_S = 30.0
"""Includes waiting for the model's tokens, where they are still being prepared."""


class LlguidanceConstraint:
    """See the port. `make_matcher` and `on_ready` run in a worker of `lane`; the latter once the first mask or an error
    is known."""

    def __init__(
        self,
        lane: Lane,
        make_matcher: Callable[[], "LLMatcher"],
        eos_token_ids: frozenset[int],
        on_ready: Callable[[], None],
    ) -> None:
        self._matcher: LLMatcher | None = None
        self._eos_token_ids = eos_token_ids
        self._give_up_s = monotonic() + COMPILE_TIMEOUT_S
        self._made: AllowedTokens | None = None
        first = lane.submit(self._begin, make_matcher)
        self._next: AllowedTokens | Future[AllowedTokens] = first
        first.add_done_callback(lambda _: on_ready())

    def poll(self) -> bool:
        if isinstance(self._next, AllowedTokens):
            return True
        if not self._next.done() and monotonic() > self._give_up_s:
            self._fail(f"compiling the grammar took more than {COMPILE_TIMEOUT_S:g} s")
        return self._next.done()

    def allowed(self) -> AllowedTokens:
        if isinstance(self._next, AllowedTokens):
            return self._next
        try:
            self._next = self._next.result(max(0.0, self._give_up_s - monotonic()))
        except TimeoutError:
            self._fail(f"compiling the grammar took more than {COMPILE_TIMEOUT_S:g} s")
            return self.allowed()
        except CancelledError:
            raise ComputeFailed("the server is stopping") from None
        return self._next

    def accept(self, token_id: int) -> None:
        if not self.allowed().allows(token_id):
            raise ComputeFailed(f"token {token_id} is not allowed by the grammar here")
        if token_id in self._eos_token_ids:
            self._next = _only(self._eos_token_ids)
            return
        assert self._matcher is not None
        try:
            self._matcher.consume_token(token_id)
            self._next = self._mask(self._matcher)
        except ComputeFailed as error:
            self._fail(error.message)  # raised by `allowed`, as a compiler's error is
        except BaseException as error:  # a panic of the library is no Exception
            self._fail(f"the grammar failed: {error}")

    def _fail(self, why: str) -> None:
        self._next = Future()
        self._next.set_exception(ComputeFailed(why))

    def _begin(self, make_matcher: Callable[[], "LLMatcher"]) -> AllowedTokens:
        self._matcher = make_matcher()
        return self._mask(self._matcher)

    def _mask(self, matcher: "LLMatcher") -> AllowedTokens:
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            raise ComputeFailed(f"the grammar failed: {matcher.get_error().partition('<non-verbose/>')[0].strip()}")
        if matcher.is_stopped() and matcher.is_accepting():
            return _only(self._eos_token_ids)
        if matcher.is_accepting():
            mask = _with(mask, self._eos_token_ids)
        if self._made is None or self._made.mask != mask:
            if not mask.strip(b"\0"):
                raise ComputeFailed("the grammar is at a dead end: no token may follow")
            self._made = AllowedTokens(mask)
        return self._made


def _only(token_ids: frozenset[int]) -> AllowedTokens:
    return AllowedTokens(_with(b"", token_ids), must_end=True)


def _with(mask: bytes, token_ids: frozenset[int]) -> bytes:
    bits = bytearray(mask)
    bits.extend(bytes(max(0, max(token_ids, default=0) // 8 + 1 - len(bits))))
    for id in token_ids:
        bits[id // 8] |= 1 << id % 8
    return bytes(bits)
