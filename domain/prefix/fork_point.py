"""Positions in a rendered prompt where a later request is likely to branch off."""

from dataclasses import dataclass
from enum import Enum


class ForkKind(Enum):
    """Why a later request is likely to branch off here; earlier members matter more."""

    NEXT_TURN = "next_turn"
    MORE_SAID = "more_said"
    """Before the answer: what is said last goes on."""
    SYSTEM_END = "system_end"
    TURN = "turn"


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """A token position in a rendered prompt (0 < position <= its length)."""

    position: int
    kind: ForkKind
