"""What holds the tokens of one choice: its grammar, its reasoning budget, or the one over the other."""

from application.ports.engine import Submission
from application.ports.token_constraint import ConstraintCompiler, TokenConstraint
from application.services.token_side.reasoning_constraint import ReasoningConstraint
from domain.errors import ComputeFailed


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


__all__ = ("constraint_of",)
