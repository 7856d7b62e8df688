"""A ConstraintCompiler: per model the tokens as the library wants them, per salt and grammar a matcher to copy from.

Both are made once, in a worker: the tokens while the model is loaded, the matcher when it is first needed. Requests
that need them meanwhile wait for that worker.
"""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

from adapters.llguidance.constraint import LlguidanceConstraint
from adapters.llguidance.library import new_matcher, new_tokenizer
from adapters.llguidance.rendering import rendered
from application.ports.token_constraint import TokenConstraint
from application.services.lane import Lane
from domain.errors import ComputeFailed, ServerUnavailable
from domain.ids import ModelId
from domain.models.model_card import Vocabulary
from domain.request.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

K = TypeVar("K")
V = TypeVar("V")

MAX_GRAMMARS = 32
"""The matchers kept to copy from for one model: some megabytes each."""


class _Made(Generic[K, V]):
    """A cache of values that are made once a key; the least recently used is evicted. A failure is raised to all who
    wait, and not kept. Any thread."""

    def __init__(self, max_kept: int) -> None:
        self._max_kept = max_kept
        self._lock = Lock()
        self._futures: OrderedDict[K, Future[V]] = OrderedDict()

    def get(self, key: K, make: Callable[[], V]) -> V:
        with self._lock:
            future = self._futures.get(key)
            is_maker = future is None
            if future is None:
                future = self._futures[key] = Future()
            self._futures.move_to_end(key)
            if len(self._futures) > self._max_kept:
                self._futures.popitem(last=False)
        if is_maker:
            try:
                future.set_result(make())
            except BaseException as error:
                future.set_exception(error)
                with self._lock:
                    if self._futures.get(key) is future:
                        del self._futures[key]
        return future.result()


class _Model:
    """One model's tokens, made by a worker of `lane`, and its grammars."""

    def __init__(self, lane: Lane, vocabulary: Vocabulary) -> None:
        self.tokenizer: Future[LLTokenizer] = lane.submit(new_tokenizer, vocabulary)
        self._matchers: _Made[tuple[str, Grammar], LLMatcher] = _Made(MAX_GRAMMARS)
        self._copying = Lock()

    def matcher(self, grammar: Grammar, salt: str) -> "LLMatcher":
        """Return a matcher for one sequence. Runs in a worker. Raises ComputeFailed."""
        try:
            original = self._matchers.get((salt, grammar), lambda: self._compiled(grammar))
            with self._copying:
                return original.deep_copy()
        except ComputeFailed:
            raise
        except Exception as error:
            raise ComputeFailed(f"the grammar could not be compiled: {error}") from error

    def _compiled(self, grammar: Grammar) -> "LLMatcher":
        matcher = new_matcher(self.tokenizer.result(), rendered(grammar))
        if matcher.is_error():
            raise ComputeFailed(f"the grammar could not be compiled: {matcher.get_error()}")
        return matcher


class LlguidanceCompiler:
    """See the port. Holds no thread: `lane` does the work, and its owner ends it."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._models: dict[ModelId, _Model] = {}
        self._wake: Callable[[], None] = _do_nothing

    def attach(self, id: ModelId, vocabulary: Vocabulary | None) -> None:
        if vocabulary is not None:
            self._models[id] = _Model(self._lane, vocabulary)

    def detach(self, id: ModelId) -> None:
        self._models.pop(id, None)

    def compile(self, id: ModelId, grammar: Grammar, eos_token_ids: frozenset[int], salt: str = "") -> TokenConstraint:
        model = self._models.get(id)
        if model is None or not eos_token_ids:
            raise ComputeFailed(f"{id} is not loaded, its tokens have no bytes, or none of them ends an answer")
        try:
            make_matcher = partial(model.matcher, grammar, salt)
            return LlguidanceConstraint(self._lane, make_matcher, eos_token_ids, self._wake)
        except ServerUnavailable:
            raise ComputeFailed("the server is stopping") from None

    def wake_with(self, wake: Callable[[], None]) -> None:
        self._wake = wake


def _do_nothing() -> None:
    """The wake-up until one is set."""
