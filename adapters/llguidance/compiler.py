"""A ConstraintCompiler over llguidance: tokens per model, and per salt and grammar a matcher to copy from.

Both are made once, in a worker: the tokens while the model is loaded, the matcher when it is first needed. Requests
that need them wait for that worker. Then the compute thread follows each sequence's own copy:

    worker           compile the grammar, mask of token 0
    compute thread   accept(token i): consume it, mask of token i+1     while the device computes the forward pass of i

A mask takes some five microseconds, handing it to a worker fifty to two hundred; the library's limits bound the cost of
a hostile grammar (`library.LIMITS`, some 20 ms).
"""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from adapters.llguidance.library import new_matcher, new_tokenizer, rendered
from application.ports.token_constraint import AllowedTokens, TokenConstraint
from application.services.lane import Lane
from domain.errors import ComputeFailed, ServerUnavailable
from domain.ids import ModelId
from domain.models.model_card import Vocabulary
from domain.request.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

COMPILE_TIMEOUT_S = 600.0
"""The limit of a compilation that does not end. The grammar's trial has bounded its processor time, which may take
minutes on a busy machine; waiting for a worker and for the model's tokens is included."""


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


MAX_GRAMMARS = 32
"""The matchers kept to copy from for one model: some megabytes each."""


class _Model:
    """One model's tokens, made by a worker of `lane`, and its grammars. Any thread."""

    def __init__(self, lane: Lane, vocabulary: Vocabulary) -> None:
        self._tokenizer: Future[LLTokenizer] = lane.submit(new_tokenizer, vocabulary)
        self._lock = Lock()
        self._copying = Lock()
        self._matchers: OrderedDict[tuple[str, Grammar], Future[LLMatcher]] = OrderedDict()

    def matcher(self, grammar: Grammar, salt: str) -> "LLMatcher":
        """Returns a matcher for one sequence. Runs in a worker. Raises ComputeFailed."""
        try:
            original = self._original((salt, grammar))
            with self._copying:
                return original.deep_copy()
        except ComputeFailed:
            raise
        except Exception as error:
            raise ComputeFailed(f"the grammar could not be compiled: {error}") from error

    def _original(self, key: tuple[str, Grammar]) -> "LLMatcher":
        """Returns the matcher to copy from, compiled by the first caller; others wait. A failure is raised to all of
        them, and not kept. The least recently used is evicted."""
        with self._lock:
            made = self._matchers.get(key)
            is_first = made is None
            if made is None:
                made = self._matchers[key] = Future()
            self._matchers.move_to_end(key)
            if len(self._matchers) > MAX_GRAMMARS:
                self._matchers.popitem(last=False)
        if is_first:
            try:
                made.set_result(self._compiled(key[1]))
            except BaseException as error:
                made.set_exception(error)
                with self._lock:
                    self._matchers.pop(key, None)
        return made.result()

    def _compiled(self, grammar: Grammar) -> "LLMatcher":
        matcher = new_matcher(self._tokenizer.result(), rendered(grammar))
        if matcher.is_error():
            raise ComputeFailed(f"the grammar could not be compiled: {matcher.get_error()}")
        return matcher


class LlguidanceCompiler:
    """See the port. Holds no thread: `lane` does the work, and its owner ends it."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._models: dict[ModelId, _Model] = {}
        self._wake: Callable[[], None] = lambda: None

    def attach(self, id: ModelId, vocabulary: Vocabulary | None) -> None:
        if vocabulary is not None:
            self._models[id] = _Model(self._lane, vocabulary)

    def detach(self, id: ModelId) -> None:
        self._models.pop(id, None)

    def compile(self, id: ModelId, grammar: Grammar, eos_token_ids: frozenset[int], salt: str = "") -> TokenConstraint:
        model = self._models.get(id)
        if model is None or not eos_token_ids:
            raise ComputeFailed(
                f"no grammar can be compiled for {id}: it is not loaded, its tokens have no byte representation, or"
                " none of them ends an answer"
            )
        try:
            make_matcher = partial(model.matcher, grammar, salt)
            return LlguidanceConstraint(self._lane, make_matcher, eos_token_ids, self._wake)
        except ServerUnavailable:
            raise ComputeFailed("the server is stopping") from None

    def wake_with(self, wake: Callable[[], None]) -> None:
        self._wake = wake
