"""Grammars that constrain a sequence's tokens: checked on the text side, enforced on the token side.

    text side     GrammarChecker.check          before a request is submitted; a grammar that cannot be enforced: 400
    token side    ConstraintCompiler.compile    at submission; compiles in a worker, and the first mask with it
                  TokenConstraint.accept        after each token; the next mask is made then
                  TokenConstraint.allowed       where a token is chosen

A step of decoding: the forward pass of token i is queued, token i is accepted, the next mask is made while the device
computes, and token i+1 is chosen with it. So a constrained sequence runs ahead as a free one does, and never with a
token that its grammar does not allow. A failure is ComputeFailed, of that sequence alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from domain.ids import ModelId
from domain.models.model_card import Vocabulary
from domain.request.grammar import Grammar


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """The tokens that may come next: bit `i % 8` of byte `i // 8` of `mask` is set for token `i`; at least one is.

    Ids beyond the mask are not allowed. `must_end`: only tokens that end the answer may, because it is complete."""

    mask: bytes
    must_end: bool = False

    def allows(self, token_id: int) -> bool:
        return 0 <= token_id < len(self.mask) * 8 and bool(self.mask[token_id // 8] >> token_id % 8 & 1)


class TokenConstraint(Protocol):
    """The position of one sequence in its grammar. Compute thread only."""

    def poll(self) -> bool:
        """Returns True once `allowed` would return or raise without waiting."""
        ...

    def allowed(self) -> AllowedTokens:
        """Returns the tokens that may follow those accepted so far. Waits for the compiler, up to a timeout. Raises
        ComputeFailed when it failed or takes too long, the grammar is at a dead end, or a token broke it."""
        ...

    def accept(self, token_id: int) -> None:
        """Advance by the token that was chosen, and compute the mask after it. After a token that ends the answer only
        such tokens are allowed. Raises ComputeFailed for a token that is not allowed; the constraint is unusable then.
        """
        ...


class ConstraintCompiler(Protocol):
    """Compiles grammars on the token side. Any thread; nothing blocks."""

    def attach(self, id: ModelId, vocabulary: Vocabulary | None) -> None:
        """Registers a model that is being loaded: its sequences may be constrained from now on. A worker prepares its
        `vocabulary`, once a model. Without a vocabulary every compilation fails."""
        ...

    def detach(self, id: ModelId) -> None:
        """Unregisters a model. Existing constraints continue to work."""
        ...

    def compile(self, id: ModelId, grammar: Grammar, eos_token_ids: frozenset[int], salt: str = "") -> TokenConstraint:
        """Begins to compile a grammar. `eos_token_ids`: all tokens that end this answer. Compiled grammars are shared
        by requests of one `salt` only, so that no timing reveals another tenant's. Raises ComputeFailed for a model
        that is not attached, and when no token could end the answer."""
        ...

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Registers `wake`, which is called on any thread whenever a constraint has become ready for the first time."""
        ...


class GrammarChecker(Protocol):
    """Checks grammars on the text side. Any thread; blocks up to a timeout. No grammar can hang it, take memory without
    bound, or end the process."""

    def check(
        self, grammar: Grammar, vocab_size: int, special_tokens: Mapping[str, int], param: str, salt: str = ""
    ) -> None:
        """Raises InvalidRequest for `param` if the grammar cannot be read, names a special token that the model does
        not have, matches nothing, or would cost too much; ServerUnavailable if that cannot be known now.
        Verdicts are cached by `salt`."""
        ...
