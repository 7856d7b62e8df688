"""One sequence's matcher, one call of the library after the other, and the compute thread's view of it.

                 while masks are cheap                              after one was dear (`mask_pace`)
compute thread   accept(token i): consume it, mask of token i+1     accept(token i)      ...      allowed()
worker                                                                  consume it, mask of token i+1

Either way the forward pass of token i is under way meanwhile. The first mask is made by the worker that compiles. Rows
of a batch accept their tokens one after the other, and share a worker where they need one (`rounds`).
"""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from time import monotonic, thread_time
from typing import TYPE_CHECKING

from adapters.llguidance.mask_pace import MaskPace
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
        cpu_s: Callable[[], float] = thread_time,
    ) -> None:
        """`cpu_s`: processor time of the thread that calls it."""
        self._rounds = rounds
        self._matcher: LLMatcher | None = None
        self._eos_token_ids = eos_token_ids
        self._give_up_s = monotonic() + COMPILE_TIMEOUT_S
        self._due_s: float | None = None
        self._cpu_s = cpu_s
        self._pace = MaskPace()
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
        if not isinstance(self._next, AllowedTokens):
            self._next = self._awaited(self._next)
        return self._next

    def accept(self, token_id: int) -> None:
        if not self.allowed().allows(token_id):
            raise ComputeFailed(f"token {token_id} is not what the grammar allows here")
        if token_id in self._eos_token_ids:
            self._next = _only(self._eos_token_ids)
        elif self._pace.is_cheap:
            self._advance_here(token_id)
        else:
            self._due_s = monotonic() + MASK_TIMEOUT_S
            try:
                self._next = self._rounds.submit(partial(self._advance, token_id))
            except ServerUnavailable:
                raise ComputeFailed("the server is stopping") from None

    def _awaited(self, coming: "Future[AllowedTokens]") -> AllowedTokens:
        try:
            due_s = self._due_s
            return coming.result(MASK_TIMEOUT_S if due_s is None else max(0.0, due_s - monotonic()))
        except TimeoutError:
            why = f"the grammar did not say within {MASK_TIMEOUT_S:g} s what may follow"
            self._fail(why)  # nobody waits twice
            raise ComputeFailed(why) from None
        except CancelledError:
            raise ComputeFailed("the server is stopping") from None

    def _advance_here(self, token_id: int) -> None:
        """What fails is told by `allowed`, as where a worker fails."""
        try:
            self._next = self._advance(token_id)
        except ComputeFailed as error:
            self._fail(error.message)
        except BaseException as error:  # a panic of the library is no Exception
            self._fail(f"the grammar failed: {error}")

    def _fail(self, why: str) -> None:
        self._next = Future()
        self._next.set_exception(ComputeFailed(why))

    def _begin(self, make_matcher: Callable[[], "LLMatcher"]) -> AllowedTokens:
        self._matcher = make_matcher()
        started = self._cpu_s()
        return self._look(started)

    def _advance(self, token_id: int) -> AllowedTokens:
        assert self._matcher is not None
        started = self._cpu_s()
        self._matcher.consume_token(token_id)
        return self._look(started)

    def _look(self, started: float) -> AllowedTokens:
        """`started`: when this began, as `cpu_s` tells it."""
        assert self._matcher is not None
        mask = self._matcher.compute_bitmask()
        self._pace.record(self._cpu_s() - started)
        if self._matcher.is_error():
            raise ComputeFailed(
                f"the grammar failed: {self._matcher.get_error().partition('<non-verbose/>')[0].strip()}"
            )
        if self._matcher.is_stopped() and self._matcher.is_accepting():
            return _only(self._eos_token_ids)
        if self._matcher.is_accepting():
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


__all__ = ("MASK_TIMEOUT_S", "LlguidanceConstraint")
