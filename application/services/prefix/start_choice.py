"""What a sequence had best start from, as things stand: what an earlier one computes, a live state, records, nothing.

What gets it furthest is chosen. An earlier sequence is waited for only where it gets clearly further than what is there
already; a live state goes before records that reach no further, because taking it over copies nothing.

Choosing holds nothing and tells nobody: what follows from it is the `approach`'s. Compute thread only.
"""

from application.services.prefix.cache_context import CacheContext
from application.services.prefix.in_flight import MIN_SHARED_TOKENS, InFlight, find_owner
from application.services.prefix.live_states import Continuation
from application.services.prefix.phases import Following, Held, Ready
from application.services.prefix.tiers import Answers
from domain.hashing import BlockChain
from domain.holdings import Found
from domain.ids import SequenceId
from domain.prefix import ReuseRules
from domain.record import NamespaceInfo, RecordKey

MAX_FAILED_FETCHES = 3
"""How often a lookup is repeated because what it found was gone; then the prompt is computed."""


class StartChoice:
    """Of one sequence. It remembers what turned out to be gone, and chooses that no more."""

    def __init__(
        self, context: CacheContext, id: SequenceId, info: NamespaceInfo, rules: ReuseRules, *, restores: bool
    ) -> None:
        """`restores` False: what is found is known to be there, so that it is not written again, and is not used."""
        self._context = context
        self._id = id
        self._info = info
        self._rules = rules
        self._restores = restores
        self._absent: frozenset[RecordKey] = frozenset()
        self._num_failed = 0

    def note_gone(self, missing: frozenset[RecordKey]) -> None:
        """A fetch failed for them."""
        self._num_failed += 1
        self._absent |= missing

    def match(self, chain: BlockChain, answers: Answers, missing: frozenset[RecordKey] = frozenset()) -> Found:
        """What there is of the prompt. `missing`: to be left out this time, beside what is gone."""
        return self._context.tiers.match(chain, self._rules, answers, self._absent | missing)

    def in_memory(self, chain: BlockChain, missing: frozenset[RecordKey] = frozenset()) -> Found:
        """The same, without asking the stores."""
        return self.match(chain, self._context.tiers.unanswered(), missing)

    def best(self, found: Found, *, is_ahead: bool) -> Following | Held | Ready:
        """`is_ahead`: it waits in the queue."""
        if not self._restores:
            return Ready(found)
        live = self._live(found)
        reached = live.position if live is not None else found.match.position
        open = self._context.open.values() if self._context.tiers.keeps_anything else ()
        others = [other for other in open if self.may_follow(other, is_ahead=is_ahead)]
        helped = find_owner(self._id, found.chain, reached, others, self._rules.grid)
        if helped is not None:
            return Following(found.chain, *helped)
        if live is None and found.match.position and self._num_failed <= MAX_FAILED_FETCHES:
            return Held(found)
        return Ready(found, live=live)

    def better(self, ready: Ready, *, is_charged: bool) -> Held | Ready | None:
        """Ready while it was in the queue: who was admitted before it may have computed more of its prompt since, or
        have left what it goes on from. None: nothing of that. `is_charged`: as one that takes a state over, for no
        more than that, so that it does so all the same."""
        if not self._restores:
            return None
        now = self.in_memory(ready.found.chain)
        latest = self._live(ready.found)
        if latest is not None and (is_charged or latest.position >= now.match.position):
            return Ready(ready.found, live=latest)
        return Held(now) if now.match.position >= ready.position + MIN_SHARED_TOKENS else None

    def may_follow(self, other: InFlight, *, is_ahead: bool) -> bool:
        """Who is admitted has what others in the queue may wait for, and so waits for none of those."""
        return other.id in self._context.open and other.shares and (is_ahead or other.is_admitted)

    def _live(self, found: Found) -> Continuation | None:
        """The live state to go on from, unless records reach further."""
        live = self._context.tiers.live.find(found.chain, self._info.model, self._rules.grid)
        return live if live is not None and live.position >= found.match.position else None


__all__ = ("MAX_FAILED_FETCHES", "StartChoice")
