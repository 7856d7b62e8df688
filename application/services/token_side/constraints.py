"""Constraints of one choice's tokens: its grammar, its reasoning budget, or the one over the other.

A reasoning budget works where grammars do: in batches, beside free rows, running ahead. When it is spent, only the
tokens that end the reasoning may come; the answer's grammar under it has the last word where it does not allow them.
A constraint outlives the state its sequence is computed in: a backend tells it each token that it feeds, and what was
put out and not fed any more before a preemption it catches up with.
"""

from collections.abc import Sequence

from application.ports.engine import Submission
from application.ports.token_constraint import AllowedTokens, ConstraintCompiler, TokenConstraint
from domain.errors import ComputeFailed
from domain.request.reasoning_budget import ReasoningBudget, ReasoningMeter


def constraint_of(asked: Submission, vocab_size: int, constraints: ConstraintCompiler | None) -> TokenConstraint | None:
    """Begins to compile its grammar; None holds nothing. Raises ComputeFailed, without a compiler too."""
    constraint: TokenConstraint | None = None
    if asked.grammar is not None:
        if constraints is None:
            raise ComputeFailed("this engine holds no answer to a grammar")
        constraint = constraints.compile(asked.model, asked.grammar, asked.eos_token_ids, asked.cache_salt)
    if asked.reasoning_budget is not None:
        ends = frozenset[int]() if asked.ignore_eos else asked.eos_token_ids
        constraint = ReasoningConstraint(asked.reasoning_budget, vocab_size, ends, constraint)
    return constraint


class ReasoningConstraint:
    """A TokenConstraint. `eos_token_ids`: all that end this answer. `grammar`: what else holds it."""

    __slots__ = ("_ends", "_free", "_grammar", "_meter")

    def __init__(
        self,
        budget: ReasoningBudget,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        grammar: TokenConstraint | None = None,
    ) -> None:
        self._meter = ReasoningMeter(budget)
        self._free = AllowedTokens(((1 << vocab_size) - 1).to_bytes((vocab_size + 7) // 8, "little"))
        self._ends = eos_token_ids
        self._grammar = grammar

    def poll(self) -> bool:
        return self._grammar is None or self._grammar.poll()

    def allowed(self) -> AllowedTokens:
        allowed = self._free if self._grammar is None else self._grammar.allowed()
        forced = self._meter.forced
        return allowed if forced is None or not allowed.allows(forced) else _only({forced})

    def accept(self, token_id: int) -> None:
        if not self.allowed().allows(token_id):
            raise ComputeFailed(f"token {token_id} is not what may follow here")
        if self._grammar is not None:
            self._grammar.accept(token_id)
        elif token_id in self._ends:
            self._free = _only(self._ends, must_end=True)
        self._meter.accept(token_id)


def _only(token_ids: set[int] | frozenset[int], *, must_end: bool = False) -> AllowedTokens:
    bits = sum(1 << id for id in token_ids)
    return AllowedTokens(bits.to_bytes((max(token_ids) + 8) // 8, "little"), must_end)


class FollowedConstraint:
    """A TokenConstraint."""

    __slots__ = ("_inner", "_num_accepted")

    def __init__(self, inner: TokenConstraint) -> None:
        self._inner = inner
        self._num_accepted = 0

    def poll(self) -> bool:
        return self._inner.poll()

    def allowed(self) -> AllowedTokens:
        return self._inner.allowed()

    def accept(self, token_id: int) -> None:
        self._inner.accept(token_id)
        self._num_accepted += 1

    def catch_up(self, output_ids: Sequence[int]) -> None:
        """Accept what it was not told yet. Raises as `accept`."""
        for token_id in output_ids[self._num_accepted :]:
            self.accept(token_id)
