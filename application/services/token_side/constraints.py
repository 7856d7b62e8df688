"""The constraint of one answer's tokens: its grammar or its allowed tokens, its reasoning budget, or both.

A reasoning budget works wherever grammars do: in batches, beside free rows, and running ahead. Once it is spent, only
the tokens that end the reasoning are allowed, unless the grammar does not allow them. A constraint outlives the state
its sequence is computed in: the backend accepts each token that it feeds, and `catch_up` accepts those that were put
out but not fed before a preemption.
"""

from collections.abc import Sequence

from application.ports.engine import Submission
from application.ports.token_constraint import AllowedTokens, ConstraintCompiler, TokenConstraint
from domain.errors import ComputeFailed
from domain.request.reasoning_budget import ReasoningBudget, ReasoningMeter


class AnswerConstraint:
    """A TokenConstraint. `eos_token_ids`: all tokens that end this answer. `free`: the tokens that are allowed without
    a `grammar`; None for every token."""

    __slots__ = ("_ends", "_free", "_grammar", "_meter", "_num_accepted")

    def __init__(
        self,
        budget: ReasoningBudget | None,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        grammar: TokenConstraint | None = None,
        free: AllowedTokens | None = None,
    ) -> None:
        self._meter = ReasoningMeter(budget) if budget is not None else None
        self._free = free or AllowedTokens(((1 << vocab_size) - 1).to_bytes((vocab_size + 7) // 8, "little"))
        self._ends = eos_token_ids
        self._grammar = grammar
        self._num_accepted = 0

    def poll(self) -> bool:
        return self._grammar is None or self._grammar.poll()

    def allowed(self) -> AllowedTokens:
        allowed = self._free if self._grammar is None else self._grammar.allowed()
        forced = self._meter.forced if self._meter is not None else None
        return allowed if forced is None or not allowed.allows(forced) else _only({forced})

    def accept(self, token_id: int) -> None:
        self._num_accepted += 1
        if self._meter is not None:
            if not self.allowed().allows(token_id):
                raise ComputeFailed(f"token {token_id} is not allowed by the reasoning budget or the grammar")
            self._meter.accept(token_id)
        if self._grammar is not None:
            self._grammar.accept(token_id)
        elif token_id in self._ends:
            self._free = _only(self._ends, must_end=True)

    def catch_up(self, output_ids: Sequence[int]) -> None:
        """Accepts the output tokens that the backend did not feed. Raises as `accept`."""
        for token_id in output_ids[self._num_accepted :]:
            self.accept(token_id)


def constraint_of(
    asked: Submission, vocab_size: int, constraints: ConstraintCompiler | None
) -> AnswerConstraint | None:
    """Begins to compile the grammar of a submission. Returns None when nothing constrains its tokens. Raises
    ComputeFailed, also for a grammar without a compiler."""
    chosen, free = asked.sampling.allowed_token_ids, None
    if asked.grammar is None and asked.reasoning_budget is None and chosen is None:
        return None
    if chosen is not None:
        free = _only(chosen, must_end=chosen <= asked.eos_token_ids | asked.stop_token_ids)
    grammar: TokenConstraint | None = None
    if asked.grammar is not None:
        if constraints is None:
            raise ComputeFailed("structured output is not enabled on this engine")
        grammar = constraints.compile(asked.model, asked.grammar, asked.eos_token_ids, asked.cache_salt)
    ends = frozenset[int]() if asked.ignore_eos else asked.eos_token_ids
    return AnswerConstraint(asked.reasoning_budget, vocab_size, ends, grammar, free)


def _only(token_ids: set[int] | frozenset[int], *, must_end: bool = False) -> AllowedTokens:
    mask = bytearray(max(token_ids) // 8 + 1)
    for id in token_ids:
        mask[id // 8] |= 1 << id % 8
    return AllowedTokens(bytes(mask), must_end)
