"""Constraints of answers that are one of a list of texts, in plain Python."""

import json
from collections.abc import Callable
from concurrent.futures import Executor, Future

from application.ports.token_constraint import AllowedTokens, TokenConstraint
from domain.errors import ComputeFailed
from domain.ids import ModelId
from domain.models.model_card import Vocabulary
from domain.request.grammar import Grammar, GrammarKind


class FakeConstraint:
    """A TokenConstraint: the answer is one of a list of texts, one byte a token. Masks are computed by `workers`, so
    that a test can delay them."""

    def __init__(
        self, workers: Executor, answers: frozenset[bytes], ends: frozenset[int], on_ready: Callable[[], None]
    ) -> None:
        self._workers = workers
        self._answers = answers
        self._ends = ends
        self._text = b""
        self._has_ended = False
        self._next: Future[AllowedTokens] = workers.submit(self._compute)
        self._next.add_done_callback(lambda _: on_ready())

    def poll(self) -> bool:
        return self._next.done()

    def allowed(self) -> AllowedTokens:
        return self._next.result()

    def accept(self, token_id: int) -> None:
        if not self.allowed().allows(token_id):
            raise ComputeFailed(f"the grammar does not allow token {token_id} here")
        if token_id in self._ends:
            self._has_ended = True
        else:
            self._text += bytes([token_id])
        self._next = self._workers.submit(self._compute)

    def _compute(self) -> AllowedTokens:
        begun = [answer for answer in self._answers if answer.startswith(self._text)]
        following = {answer[len(self._text)] for answer in begun if len(answer) > len(self._text)}
        if self._has_ended:
            following.clear()
        if self._has_ended or self._text in self._answers:
            following |= self._ends
        bits = sum(1 << id for id in following)
        return AllowedTokens(bits.to_bytes((max(following) + 8) // 8, "little"), must_end=following <= self._ends)


class FakeCompiler:
    """A ConstraintCompiler for lists of choices."""

    def __init__(self, workers: Executor) -> None:
        self._workers = workers
        self._models: set[ModelId] = set()
        self._wake: Callable[[], None] = lambda: None

    def attach(self, id: ModelId, vocabulary: Vocabulary | None) -> None:
        self._models.add(id)

    def detach(self, id: ModelId) -> None:
        self._models.discard(id)

    def compile(self, id: ModelId, grammar: Grammar, eos_token_ids: frozenset[int], salt: str = "") -> TokenConstraint:
        if id not in self._models or not eos_token_ids or grammar.kind is not GrammarKind.CHOICE:
            raise ComputeFailed(f"{id} is not loaded, has no EOS token, or the grammar is not a list of choices")
        answers = frozenset(text.encode() for text in json.loads(grammar.text))
        return FakeConstraint(self._workers, answers, eos_token_ids, self._wake)

    def wake_with(self, wake: Callable[[], None]) -> None:
        self._wake = wake
