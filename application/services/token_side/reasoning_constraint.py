"""A sequence held to its reasoning budget: when it is spent, only the tokens that end the reasoning may come.

As a TokenConstraint it works where grammars do: in batches, beside free rows, running ahead. Under it may be the
answer's grammar, which has the last word where it does not allow the end of the reasoning.
"""

from application.ports.token_constraint import AllowedTokens, TokenConstraint
from domain.errors import ComputeFailed
from domain.reasoning_budget import ReasoningBudget, ReasoningMeter


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


__all__ = ("ReasoningConstraint",)
