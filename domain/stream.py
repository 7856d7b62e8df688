"""What a request's consumer receives, in this order: Admitted, PrefillProgress*, TextDelta*, Finished or Failed."""

from dataclasses import dataclass
from typing import TypeAlias

from domain.errors import DomainError
from domain.explanation import Explanation
from domain.request import FinishReason, Usage


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The chosen token's log probability and the most likely alternatives, as (token id, log probability)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request left the queue, and what its prompt could reuse has been restored."""

    explanation: Explanation


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`num_done` of `num_total` prompt tokens are in the state."""

    num_done: int
    num_total: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text (possibly empty while a multi-byte character or a stop string is undecided) and the tokens behind it."""

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The completion ended well. Nothing follows. `stop_text` is the stop string that matched, if one did."""

    reason: FinishReason
    usage: Usage
    stop_text: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The completion ended in an error. Nothing follows."""

    error: DomainError
    usage: Usage | None = None


StreamItem: TypeAlias = Admitted | PrefillProgress | TextDelta | Finished | Failed

__all__ = ("Admitted", "Failed", "Finished", "PrefillProgress", "StreamItem", "TextDelta", "TokenLogprob")
