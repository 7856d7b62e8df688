"""The lookup of one prompt, from submission until the sequence is restored. Compute thread only.

    hashing ──► found ──► fetching ──► ready ──► ended      (may end at any time)
                ▲ │ └──────│─────────────▲ a live state, nothing to fetch, or never any room for it
                └─│────────┘ what was found is gone, or the cache was cleared
                  ▼
               in the queue: follows a running sequence that computes more of this prompt

While hashing, workers hash the prompt, read which keys the store has of the namespace, if that is not known yet, and
ask the shared tier, if there is one, what it has of the prompt beyond that. Then the index is matched, without I/O, and
memory is reserved for what is fetched. Whatever a phase holds (reads,
lease, pins, claim) is released when it ends.

A prefix that a running sequence computes is not computed twice. A queued request that shares at least a block more with
it than is kept already, or all that is left of its prompt, is not admitted: it keeps its place, holds nothing, and
looks again when the other sequence has reached the position where the two part (it takes one more snapshot there), or
does not run any more.
"""

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import cast

from application.events import PrefixAwaited
from application.services.memory_leases import Lease, Purpose
from application.services.prefix.fetch import PrefixFetch
from application.services.prefix.indexes import Epoch
from application.services.prefix.live_tier import LiveState
from application.services.prefix.sequence_cache import SequenceCache
from application.services.prefix.shared.tier import MIN_ASKED_TOKENS, SharedAsk
from application.services.prefix.tiers import PrefixTiers
from domain.errors import IllegalTransition
from domain.ids import BlockHash, RequestId, SequenceId
from domain.memory.shape import MemoryShape
from domain.prefix.explanation import Explanation, StopReason
from domain.prefix.hashing import BlockChain
from domain.prefix.index import ANYWHERE, HOT, NOTHING_SHARED, STORED, PrefixMatch, ReuseRules
from domain.prefix.prompt_content import EncodedPrompt
from domain.prefix.record import NamespaceInfo, RecordKey
from domain.scheduling.step_values import TakeOver

MAX_FAILED_FETCHES = 3
"""Times that a lookup is repeated because what it found was gone; then the prompt is computed."""

REST_PARTS = 8
"""The rest of a prompt is waited for from so small a part of a block on: to compute less costs no more than to wait."""


@dataclass(frozen=True, slots=True)
class Resume:
    """A way to resume a sequence: by records (`match`), or by a `live` state that reaches at least as far. `reach`:
    tokens that are available at once; those after them have to be fetched or computed. `next_block`: the hash of the
    first block after them or, where that is not full, of the rest of the prompt; None for a short rest."""

    chain: BlockChain
    match: PrefixMatch
    reach: int
    next_block: BlockHash | None
    live: LiveState | None = None
    live_position: int = 0

    @property
    def position(self) -> int:
        return max(self.match.position, self.live_position)


class Lookup(SequenceCache):
    """The part of a CachedSequence before its state is restored.

    `started_ns`: when the state was first wanted, until then when the lookup began. `epoch`: what was found is valid
    until the namespace is cleared; then the lookup starts over in a new epoch.
    """

    def __init__(
        self,
        tiers: PrefixTiers,
        id: SequenceId,
        request_id: RequestId,
        prompt: EncodedPrompt,
        info: NamespaceInfo,
        rules: ReuseRules,
        *,
        persist: bool,
        restores: bool,
        shape: MemoryShape,
    ) -> None:
        """`persist` False: what it computes is kept in memory only. `restores` False: it is looked up, and nothing is
        used. `shape`: of its model's state."""
        super().__init__(Explanation(len(prompt.token_ids), StopReason.NEVER_SEEN))
        self.id = id
        self.request_id = request_id
        self.started_ns = tiers.clock.now_ns()
        self.epoch: Epoch = tiers.indexes.epoch(info)
        self._tiers = tiers
        self._info = info
        self._rules = rules
        self._forks = prompt.fork_points
        self._persist = persist
        self._restores = restores
        self._shape = shape
        self._is_wanted = self._is_admitted = self._is_ready = self._is_over = self._is_late = False
        self._resume: Resume | None = None
        self._fetch: PrefixFetch | None = None
        self._lease: Lease | None = None
        self._ask: SharedAsk | None = None
        self._has_asked = False
        self._owner: tuple[Lookup, int] | None = None
        self._expected: set[int] = set()
        self._absent: frozenset[RecordKey] = frozenset()
        self._num_failed = 0
        self._load = tiers.load(self.epoch)
        self._hashing = tiers.hashing.submit(BlockChain.of, info.namespace, rules.grid.block_size, prompt)
        self._hashing.add_done_callback(lambda _: tiers.wake())
        tiers.open.add(id)

    @property
    def chain(self) -> BlockChain | None:
        """The sequence's token stream; None until it is hashed, and when the lookup is over."""
        if self._is_over or self._resume is not None:
            return self._resume.chain if self._resume is not None else None
        hashing = self._hashing
        is_known = hashing.done() and not hashing.cancelled() and hashing.exception() is None
        return hashing.result() if is_known else None

    @property
    def is_looked_up(self) -> bool:
        return self._resume is not None or self._is_over

    @property
    def is_waiting(self) -> bool:
        return self._is_admitted and self._is_found

    @property
    def follows(self) -> SequenceId | None:
        return self._owner[0].id if self._owner is not None else None

    @property
    def next_block(self) -> BlockHash | None:
        return self._resume.next_block if self._resume is not None else None

    @property
    def takes_over(self) -> TakeOver | None:
        live = self._resume.live if self._resume is not None else None
        if live is None or not self._tiers.live.holds(live, self.id):
            return None
        return TakeOver(live.id, live.size_bytes)

    @property
    def position(self) -> int:
        """Tokens that the sequence's state covers now."""
        return 0

    @property
    def is_shared(self) -> bool:
        """True when the sequence makes progress, and later ones can count on finding what it computes."""
        is_kept = self._persist or bool(self._tiers.hot.budget_bytes)
        return is_kept and self._is_admitted and not self.is_waiting and not self.epoch.is_over

    def expect(self, position: int) -> None:
        """Notes that a later sequence waits for this one to pass `position` and will resume there."""
        self._expected.add(position)

    def look(self) -> None:
        self._advance()
        if self._owner is not None:
            owner, until = self._owner
            if self._tiers.running.get(owner.id) is owner and owner.is_shared and owner.position < until:
                return
            self._owner = None
            self._look_again()
        if self._restores and self._tiers.keeps_records and self._find_owner() is not None:
            self._look_again()
            self._follow()

    def prepare(self, *, ahead: bool = False) -> None:
        if not self._is_wanted:
            self._is_wanted, self.started_ns = True, self._tiers.clock.now_ns()
        if not ahead:
            self._tiers.running[self.id] = self
            self._is_admitted, self._owner = True, None
            if self._lease is not None:
                self._lease.admit()
            self._look_again()
        self._advance()

    def poll(self) -> bool:
        if not self._is_wanted:
            raise IllegalTransition("prefix cache: polled before it was prepared")
        self._advance()
        return self._is_ready

    def end_lookup(self) -> None:
        """Ends the lookup: the sequence was restored or abandoned. Idempotent."""
        self._release()
        self._owner, self._resume, self._is_over = None, None, True

    @property
    def _is_found(self) -> bool:
        return self._resume is not None and self._fetch is None and not self._is_ready

    def _release(self) -> None:
        """Releases what the present phase holds; the lookup is at `found` again, or still at `hashing`."""
        if self._lease is not None:
            self._lease.end()
            self._lease = None
        self._tiers.live.unclaim(self.id)
        self._hashing.cancel()
        if self._ask is not None:
            self._ask.abandon()
        if self._fetch is not None:
            self._fetch.close()
        self._fetch, self._is_ready = None, False

    def _advance(self) -> None:
        if self.epoch.is_over and not self._is_over:
            self._start_over()
        if (self._fetch is not None or self._is_ready) and self._lease is not None and self._lease.is_recalled:
            self._release()
        while not self._is_over and self._moves_on():
            pass
        if self._is_admitted and self._is_ready and self._resume is not None and self._resume.live is not None:
            self._tiers.live.claim(self._resume.live, self.id)

    def _start_over(self) -> None:
        """Starts over after the cache was cleared: earlier results must not be used."""
        chain = self.chain
        if chain is not None:
            self._release()
            self._hashing = Future[BlockChain]()
            self._hashing.set_result(chain)
        self.epoch, self._absent, self._owner = self._tiers.indexes.epoch(self._info), frozenset(), None
        self._load, self._resume = self._tiers.load(self.epoch), None
        self._ask, self._has_asked = None, False

    def _moves_on(self) -> bool:
        """Takes one step towards being ready; returns False when there is none, or it has to wait."""
        resume, live = self._resume, self._tiers.live
        if resume is None:
            is_known = self.epoch.is_known or self._load is None or self._load.is_done or self._load.is_hopeless
            if not (self._hashing.done() and is_known and self._has_shared_answered(self._hashing.result())):
                return False
            self._resume = self._find(self._hashing.result())
            return True
        if self._fetch is not None:
            return not self._is_ready and self._fetch.settle() and self._finish_fetch(resume, self._fetch)
        if resume.live is not None:
            if not live.holds(resume.live, self.id):
                self._resume, self._is_ready = self._find(resume.chain), False
                return True
            if not self._is_ready:
                live.touch(resume.live)
                self._is_ready = True
            return False
        return not self._is_ready and self._is_wanted and self._owner is None and self._begin_fetch(resume)

    def _find(self, chain: BlockChain) -> Resume:
        """Finds the furthest position to resume at. A live state is preferred to records that reach no further, because
        taking it over copies nothing. After a store was late only memory is used."""
        tiers, grid, place = self._tiers, self._rules.grid, HOT if self._is_late else ANYWHERE
        shared = self._ask.finds.records if self._ask is not None else NOTHING_SHARED
        match = tiers.indexes.match(self.epoch, chain, self._rules, self._absent, place, shared)
        is_shared_late = self._ask is not None and self._ask.is_late
        if (self._is_late or is_shared_late) and match.position < grid.furthest(chain.num_prompt):
            match = match.because(StopReason.SLOW_STORE if self._is_late else StopReason.SLOW_SHARED)
        found = tiers.live.find(chain, self._info.model, grid) if self._restores else None
        live, at = found if found is not None and found[1] >= match.position else (None, 0)
        reach = at if live is not None else self._num_hot(match)
        return Resume(chain, match, reach, self._block_at(chain, reach if self._restores else 0), live, at)

    def _block_at(self, chain: BlockChain, reach: int) -> BlockHash | None:
        """Returns `Resume.next_block`."""
        index, last = reach // chain.block_size, self._rules.grid.furthest(chain.num_prompt)
        if index < chain.num_prompt // chain.block_size:
            return chain.hashes[index]
        is_short = last < reach + chain.block_size // REST_PARTS
        return None if is_short else BlockHash(chain.snapshot_key(last).digest)

    def _has_shared_answered(self, chain: BlockChain) -> bool:
        """Returns True when the shared tier has answered what it has of the prompt, or is not waited for. It is asked
        once, unless records and live states of this server reach the prompt's end, or nearly so."""
        shared = self._tiers.shared
        if shared is not None and self._restores and not self._has_asked:
            self._has_asked, found = True, self._find(chain)
            if self._rules.grid.furthest(chain.num_prompt) - found.position >= MIN_ASKED_TOKENS:
                model, wake = self._info.model, self._tiers.wake
                self._ask = shared.ask(chain, found.match, self._rules, model, self.request_id, wake)
        return self._ask is None or self._ask.settle()

    def _look_again(self) -> None:
        """Repeats the lookup, because more may be kept by now. A completed fetch is used unless another block was
        found. A sequence that was charged only for taking a state over takes it over in any case."""
        if self._resume is None or not self._restores:
            return
        is_charged = self._is_admitted and self.takes_over is not None
        now = self._find(self._resume.chain)
        is_better = now.live is not None or now.position >= self._resume.position + self._rules.grid.block_size
        if self._is_found or (is_better and not is_charged):
            self._release()
            self._resume = now

    def _find_owner(self) -> "tuple[Lookup, int] | None":
        """Returns the running sequence that will compute most of this prompt, and the end position."""
        resume = self._resume
        if resume is None:
            return None
        chain, size, grid = resume.chain, resume.chain.block_size, self._rules.grid
        last, at = grid.furthest(chain.num_prompt), min(resume.reach // size, len(chain.hashes) - 1)
        best: tuple[Lookup, int] | None = None
        for other in cast("Iterable[Lookup]", self._tiers.running.values()):
            theirs = other.chain
            if theirs is None or not other.is_shared or other.id == self.id or other.position >= theirs.num_prompt - 1:
                continue
            if chain.hashes[at : at + 1] != theirs.hashes[at : at + 1]:
                continue  # where a block is equal its hash is, and so is everything before it
            limit = min(chain.num_prompt, theirs.num_prompt) - 1
            target = grid.last_resumable(min(chain.num_shared(theirs), limit))
            least = resume.reach + (size // REST_PARTS if target == last else size)
            if other.position < target >= least and (best is None or target > best[1]):
                best = other, target
        return best

    def _follow(self) -> None:
        self._owner = self._find_owner()
        if self._owner is not None:
            owner, until = self._owner
            self._release()
            owner.expect(until)
            at_ns = self._tiers.clock.now_ns()
            self._tiers.events.emit(PrefixAwaited(self.request_id, owner.request_id, until, at_ns))

    def _begin_fetch(self, resume: Resume) -> bool:
        """Begins to fetch once memory was reserved; if there will never be room, the prompt is computed."""
        tiers, position = self._tiers, resume.match.position
        if not self._restores or not position or self._num_failed > MAX_FAILED_FETCHES:
            self._is_ready = True
            return True
        purpose = Purpose.FETCHES if self._is_admitted else Purpose.AHEAD
        needs = resume.match.needs
        num_cold = sum(
            need.num_tokens for need, is_hot in zip(needs, tiers.hot.holds(needs), strict=True) if not is_hot
        )
        cold_bytes = self._shape.state_bytes(num_cold)
        lease = tiers.memory.reserve(purpose, cold_bytes, self._shape.state_bytes(position))
        if isinstance(lease, Lease):
            self._lease = lease
            self._fetch = PrefixFetch(tiers, resume.chain, resume.match, self._rules, self._ask)
            return True
        if lease.is_final:
            self._resume, self._is_ready = replace(resume, match=resume.match.because(StopReason.NO_ROOM)), True
        return lease.is_final

    def _num_hot(self, match: PrefixMatch) -> int:
        """Returns the leading tokens of the match that need not be read; all of them where memory could not keep the
        records."""
        are_hot = self._tiers.hot.holds(match.needs)
        if all(are_hot) or self._shape.state_bytes(match.position) > self._tiers.hot.budget_bytes:
            return match.position
        return are_hot.index(False) * self._rules.grid.block_size

    def _finish_fetch(self, resume: Resume, fetch: PrefixFetch) -> bool:
        is_answered = fetch.is_answered
        with self._tiers.indexes.lasting(self.epoch) as may_keep:
            self._is_ready = may_keep and fetch.finish()
        if not may_keep:
            self._start_over()
        elif self._is_ready:
            if self._lease is not None:
                self._lease.resize(fetch.loose_bytes)
        else:
            self._release()
            self._num_failed += 1
            self._absent |= fetch.missing
            self._is_late = not is_answered
            self._tiers.indexes.remove(fetch.gone, STORED)
            self._resume = self._find(resume.chain)
        return True
