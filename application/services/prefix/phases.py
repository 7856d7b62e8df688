"""The phases of a sequence until it is restored: each holds what exists in it, and nothing else does.

    Queued ──► Asking ──► Held ──► Fetching ──► Ready ──► Ended
                │ ▲ │       │          │           ▲
                │ │ └───────┴──────────│───────────┘ nothing to fetch, or never any room for it
                │ ├────────────────────┘ what was found is gone
                ▼ │
             Following, until another sequence has computed what both need

Held waits until memory has room for what was found; Fetching and Ready go back to it when what they hold for a sequence
that still waits in the queue has to go, and Ready when it is admitted and more of its prompt is there by then. Asking
is also entered anew from itself (an old answer), from Ready when somebody else took the live state that it was to go on
from, and from everywhere before the end when the cache is cleared. Every
phase may end. A store that does not answer in time is done without: asking ends with what is in memory, fetching with
what arrived.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from application.services.prefix.fetch import Fetched, PrefixFetch
from application.services.prefix.in_flight import InFlight
from application.services.prefix.live_states import Continuation
from application.services.prefix.tiers import Question
from domain.errors import IllegalTransition
from domain.hashing import BlockChain
from domain.holdings import Found


@dataclass(frozen=True, slots=True)
class Queued:
    """Workers hash the prompt and ask the stores; nobody waits for them yet."""

    question: Future[Question]


@dataclass(frozen=True, slots=True)
class Asking:
    """The answers are wanted now. `is_repeat`: they were asked for a moment ago, and are taken as they come."""

    question: Future[Question]
    is_repeat: bool = False


@dataclass(frozen=True, slots=True)
class Following:
    """`owner`, an earlier sequence, is computing this prompt up to position `until`."""

    chain: BlockChain
    owner: InFlight
    until: int


@dataclass(frozen=True, slots=True)
class Held:
    """Something was found, and memory has no room for it yet."""

    found: Found


@dataclass(frozen=True, slots=True)
class Fetching:
    """What was found is on its way into memory."""

    found: Found
    fetch: PrefixFetch


@dataclass(frozen=True, slots=True)
class Ready:
    """`restore` may be called, while a `live` state is there that it would go on from. `fetched`: None where no record
    is used."""

    found: Found
    fetched: Fetched | None = None
    live: Continuation | None = None

    @property
    def position(self) -> int:
        """Where the sequence would start."""
        return max(self.found.match.position, self.live.position if self.live is not None else 0)


@dataclass(frozen=True, slots=True)
class Ended:
    """It was restored, or is not wanted any more: nothing is held for it."""


Phase: TypeAlias = Queued | Asking | Following | Held | Fetching | Ready | Ended

TRANSITIONS: Mapping[type[Phase], frozenset[type[Phase]]] = {
    Queued: frozenset({Asking, Ended}),
    Asking: frozenset({Asking, Following, Held, Ready, Ended}),
    Following: frozenset({Asking, Ended}),
    Held: frozenset({Asking, Fetching, Ready, Ended}),
    Fetching: frozenset({Asking, Following, Held, Ready, Ended}),
    Ready: frozenset({Asking, Held, Ready, Ended}),
    Ended: frozenset(),
}


def chain_of(phase: Phase) -> BlockChain | None:
    """The sequence's token stream: None until it is hashed, and when it is over."""
    match phase:
        case Queued(question) | Asking(question):
            is_known = question.done() and not question.cancelled() and question.exception() is None
            return question.result().chain if is_known else None
        case Held(found) | Fetching(found) | Ready(found):
            return found.chain
        case Following(chain):
            return chain
        case Ended():
            return None


def checked(before: Phase, after: Phase) -> Phase:
    """`after`. Raises IllegalTransition when the table has no such step."""
    if type(after) not in TRANSITIONS[type(before)]:
        raise IllegalTransition(f"prefix cache: {type(before).__name__} to {type(after).__name__}")
    return after


__all__ = (
    "TRANSITIONS",
    "Asking",
    "Ended",
    "Fetching",
    "Following",
    "Held",
    "Phase",
    "Queued",
    "Ready",
    "chain_of",
    "checked",
)
