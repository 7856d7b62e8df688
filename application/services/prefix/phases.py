"""The first and the last phase of a lookup: the prompt is hashed, and its state can be put in place."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from application.events import FaultObserved
from application.ports.state_access import StateAccess, StateMisfit
from application.services.prefix.explainer import explained, match_with_live
from application.services.prefix.fetch import PrefixFetch
from application.services.prefix.resume import Resume
from application.services.prefix.shared.tier import SharedAsk
from application.services.prefix.tiers import PrefixTiers
from domain.errors import ComputeFailed
from domain.ids import RequestId, SequenceId
from domain.prefix.explanation import Explanation, StopReason
from domain.prefix.hashing import BlockChain
from domain.prefix.index import PERSISTED
from domain.prefix.prompt_content import BlockGrid, ForkPoint


@dataclass(slots=True)
class Hashing:
    """Workers hash the prompt, read which keys the store has of its namespace, if that is not known yet, and ask the
    shared tier, if there is one, for the rest (`ask`)."""

    hashed: Future[BlockChain]
    ask: SharedAsk | None = None

    @classmethod
    def done(cls, chain: BlockChain) -> "Hashing":
        hashed = Future[BlockChain]()
        hashed.set_result(chain)
        return cls(hashed)

    @property
    def chain(self) -> BlockChain | None:
        """None until the prompt is hashed."""
        hashed = self.hashed
        is_known = hashed.done() and not hashed.cancelled() and hashed.exception() is None
        return hashed.result() if is_known else None

    def close(self) -> None:
        self.hashed.cancel()
        if self.ask is not None:
            self.ask.abandon()


@dataclass(frozen=True, slots=True)
class Ready:
    """The state can be put in place: by the records of a fetch, by a live state, which an admitted sequence claims, or
    by neither, at the start of the prompt."""

    tiers: PrefixTiers
    id: SequenceId
    resume: Resume
    fetch: PrefixFetch | None = None

    @property
    def start(self) -> int:
        """The position at which computing begins."""
        return self.resume.position if self.fetch is not None or self.resume.live is not None else 0

    @property
    def is_canonical(self) -> bool:
        """True when all before `start` was computed on the grid."""
        if (live := self.resume.live) is not None:
            return self.start <= live.num_canonical
        return self.fetch is None or self.fetch.is_canonical

    def explained(self, forks: Sequence[ForkPoint], grid: BlockGrid, *, is_used: bool) -> Explanation:
        """Explains what is reused. `is_used` False: what is kept was not to be used."""
        resume, match, reused = self.resume, self.resume.match, dict[str, int]()
        if resume.live is not None:
            match, reused = match_with_live(match, self.start, resume.chain, grid), {self.tiers.live.name: self.start}
        elif self.fetch is not None:
            reused = dict(self.fetch.num_reused)
        found = explained(self.tiers, resume.chain, match, reused, forks)
        return found if is_used else found.scored()

    def claim(self) -> None:
        """Reserves the live state, if it is one, for this sequence. Idempotent."""
        if self.resume.live is not None:
            self.tiers.live.claim(self.resume.live, self.id)

    def put_in_place(self, model: StateAccess, request_id: RequestId, started_ns: int) -> None:
        """Gives the open, empty sequence its state. Raises ComputeFailed."""
        if self.resume.live is not None:
            self.tiers.live.take_over(self.resume.live, self.id, self.start)
        elif self.fetch is not None:
            self.fetch.restore(model, self.id, request_id, started_ns)

    def failed(self, model: StateAccess, error: ComputeFailed) -> "Ready":
        """Reports a failure to put the state in place, and returns what is left: the prompt is computed. Records are
        dropped only if they do not fit the model. Raises the error when the sequence is not open and empty any more."""
        if self.id not in model.open_ids() or model.position(self.id):
            raise error
        tiers, fetch = self.tiers, self.fetch
        tiers.events.emit(FaultObserved("cache.restore" if fetch else "cache.live", str(error), tiers.clock.now_ns()))
        reason = StopReason.RESTORE_FAILED
        if fetch is not None and isinstance(error, StateMisfit):
            reason, keys = StopReason.UNREADABLE, [record.key for record in reversed(fetch.records)]
            self.close()
            tiers.indexes.remove(keys, PERSISTED)  # from memory at once; a worker deletes them from the store
            tiers.discard(keys)
        return Ready(tiers, self.id, self.resume.unrestored(reason))

    def close(self) -> None:
        """Releases the records or the claim. Idempotent."""
        if self.fetch is not None:
            self.fetch.close()
        self.tiers.live.unclaim(self.id)
