"""The prefix session of one sequence, from submission to its end: it finds where to resume, restores the state there,
and captures what the sequence computes from then on. Compute thread only.

    phase          holds                      event                                                     next phase
    Hashing        hashing, shared ask        hashed, the store's keys known, the shared tier answered  Resume
    Resume         nothing                    wanted, and memory was reserved                           PrefixFetch
                                              a live state, nothing to fetch, or never any room         Ready
    PrefixFetch    reads, pins, lease         all has arrived: Ready has the fetch from now on          Ready
                                              something is gone or late                                 Resume
    Ready          the fetch, or the claim    `restore`                                                 StateCapture
                   of a live state            the state could not be restored: nothing is               Ready
                                              the live state is gone                                    Resume
    StateCapture   nothing
    None           nothing: it is over

    PrefixFetch, Ready                        memory is recalled, more is kept by now, or it follows    Resume
    all before StateCapture                   the namespace was cleared                                 Hashing
    all                                       `end`, `abandon`                                          None

`_enter` changes the phase and closes the one that is left: what that holds is released.

A queued request that shares at least a block more with a running sequence than is kept already, or all that is left of
its prompt, follows it: it keeps its place, holds nothing, and looks again when the other one has reached the position
where the two part (it takes one more snapshot there), or does not run any more. So no prefix is computed twice.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

from application.events import PrefixAwaited, PrefixMatched
from application.ports.state_access import StateAccess
from application.services.memory_leases import Lease, Purpose
from application.services.prefix.capture import StateCapture
from application.services.prefix.fetch import PrefixFetch, begin_fetch
from application.services.prefix.phases import Hashing, Ready
from application.services.prefix.resume import Resume, find_resume
from application.services.prefix.shared.tier import MIN_ASKED_TOKENS, SharedAsk
from application.services.prefix.tiers import PrefixTiers
from domain.errors import ComputeFailed, IllegalTransition
from domain.ids import BlockHash, RequestId, SequenceId
from domain.memory.shape import MemoryShape
from domain.prefix.explanation import Explanation, StopReason
from domain.prefix.hashing import BlockChain
from domain.prefix.index import STORED, ReuseRules
from domain.prefix.prompt_content import EncodedPrompt
from domain.prefix.record import NamespaceInfo, RecordKey
from domain.scheduling.step_values import TakeOver

MAX_FAILED_FETCHES = 3
"""Times that a lookup is repeated because what it found was gone; then the prompt is computed."""

Phase: TypeAlias = Hashing | Resume | PrefixFetch | Ready | StateCapture | None


class PrefixSession:
    """The session of a model whose state can be captured; `NoReuse` is that of the others.

    `explanation`: what was reused and why no more; final once restored. `started_ns`: when the state was first wanted,
    until then when the session began. `epoch`: what was found is valid until the namespace is cleared.
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
        self.explanation = Explanation(len(prompt.token_ids), StopReason.NEVER_SEEN)
        self.id, self.request_id, self.started_ns = id, request_id, tiers.clock.now_ns()
        self._tiers, self._info, self._rules, self._shape = tiers, info, rules, shape
        self._forks, self._persist, self._restores = prompt.fork_points, persist, restores
        self._purpose: Purpose | None = None  # of its fetch: AHEAD of admission or FETCHES; None: not wanted yet
        self._owner: tuple[PrefixSession, int] | None = None  # in the queue: the session it follows, and up to where
        self._expected: set[int] = set()
        self._num_failed, self._is_late = 0, False  # fetches, and whether the store was late at the last one
        self._begin_epoch(None)
        hashed = tiers.hashing.submit(BlockChain.of, info.namespace, rules.grid.block_size, prompt)
        hashed.add_done_callback(lambda _: tiers.wake())
        self._phase: Phase = Hashing(hashed)
        tiers.open.add(id)

    @property
    def chain(self) -> BlockChain | None:
        """The sequence's token stream; None until it is hashed, and when the session is over."""
        phase = self._resume or self._phase
        return phase.chain if isinstance(phase, Hashing | Resume | StateCapture) else None

    @property
    def position(self) -> int:
        """Tokens that the sequence's state covers now."""
        return self._phase.position if isinstance(self._phase, StateCapture) else 0

    @property
    def stops(self) -> tuple[int, ...]:
        """Positions at which prefill must pause, ascending; may grow while prefilling."""
        return self._phase.stops if isinstance(self._phase, StateCapture) else ()

    @property
    def is_looked_up(self) -> bool:
        """True when the position to resume at is known; the records may still have to be fetched."""
        return not isinstance(self._phase, Hashing)

    @property
    def is_waiting(self) -> bool:
        """True when the sequence was admitted and its prefix waits for room in memory."""
        return self._is_admitted and isinstance(self._phase, Resume)

    @property
    def is_shared(self) -> bool:
        """True when the sequence makes progress, and later ones can count on finding what it computes."""
        is_kept = self._persist or bool(self._tiers.hot.budget_bytes)
        return is_kept and self._is_admitted and not self.is_waiting and not self.epoch.is_over

    @property
    def follows(self) -> SequenceId | None:
        """In the queue: the running sequence that computes more of this prompt than is kept yet."""
        return self._owner[0].id if self._owner is not None else None

    @property
    def next_block(self) -> BlockHash | None:
        """In the queue: the first block that the sequence would compute; if two have the same one, the second waits."""
        return self._resume.next_block if self._resume is not None else None

    @property
    def takes_over(self) -> TakeOver | None:
        """Until it is restored: the live state that it continues without a copy. In the queue another sequence may
        still take it first; once admitted it is this one's."""
        live = self._resume.live if self._resume is not None else None
        can_take = live is not None and self._tiers.live.holds(live, self.id)
        return TakeOver(live.id, live.size_bytes) if live is not None and can_take else None

    def expect(self, position: int) -> None:
        """Notes that a later sequence waits for this one to pass `position` and will resume there."""
        self._expected.add(position)
        if isinstance(self._phase, StateCapture):
            self._phase.expect(position)

    def refresh(self) -> None:
        """Determines the position to resume at and the session to follow, while queued; called before each step is
        planned. Cheap."""
        self._advance()
        if self._owner is not None:
            owner, until = self._owner
            if self._tiers.running.get(owner.id) is owner and owner.is_shared and owner.position < until:
                return
            self._owner = None
            self._look_again()
        if self._restores and self._tiers.keeps_records and self._find_owner() is not None:
            self._look_again()
            if (found := self._find_owner()) is not None:
                self._follow(*found)

    def prepare(self, *, ahead: bool = False) -> None:
        """Looks once more and fetches if there is room, because the sequence is admitted or will be soon (`ahead`).
        Cheap; repeated calls make progress, as `poll` does."""
        if self._purpose is None:
            self._purpose, self.started_ns = Purpose.AHEAD, self._tiers.clock.now_ns()
        if not ahead:
            self._tiers.running[self.id] = self
            self._purpose, self._owner = Purpose.FETCHES, None
            if self._lease is not None:
                self._lease.admit()
            self._look_again()
        self._advance()

    def poll(self) -> bool:
        """Makes progress, once prepared; returns True when `restore` may be called. Cheap, called once a step."""
        if self._purpose is None:
            raise IllegalTransition("prefix cache: polled before it was prepared")
        self._advance()
        return isinstance(self._phase, Ready)

    def restore(self, model: StateAccess) -> int:
        """Restores the (open, empty) sequence at the furthest available position; returns the position."""
        ready = self._phase
        if not isinstance(ready, Ready):
            raise IllegalTransition("prefix cache: restored before it was ready")
        try:
            ready.put_in_place(model, self.request_id, self.started_ns)
        except ComputeFailed as error:
            self._enter(ready := ready.failed(model, error))
        self.explanation = ready.explained(self._forks, self._rules.grid, is_used=self._restores)
        at_ns = self._tiers.clock.now_ns()
        self._tiers.events.emit(PrefixMatched.of(self.request_id, self.explanation, self.started_ns, at_ns))
        capture = StateCapture(self.epoch, self._rules, self._forks, ready, self._shape, self.request_id, self._persist)
        for position in self._expected:
            capture.expect(position)
        self._enter(capture)
        return ready.start

    def prefilled(self, model: StateAccess, position: int) -> None:
        """Notes that a chunk up to `position` has been computed."""
        self._computing().after_prefill(model, self.id, position)

    def paced(self, num_tokens: int, duration_ns: int) -> None:
        """Notes how long computing a chunk took."""
        if self._tiers.shared is not None:
            self._tiers.shared.note_pace(self._info.model, num_tokens, duration_ns)

    def decoded(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        """Notes that a token was decoded; `output_ids` are all so far."""
        self._computing().after_decode(model, self.id, output_ids)

    def suspend(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        """Keeps all records that resuming here takes: the sequence is preempted, though it may decode until then."""
        self._computing().at_pause(model, self.id, output_ids)

    def end(self, model: StateAccess, output_ids: Sequence[int]) -> bool:
        """Keeps the state of a sequence that finished or was cancelled; its state is still open. Returns True when the
        model's sequence was ended by this, and need not be closed."""
        has_left = False
        if isinstance(capture := self._phase, StateCapture):
            capture.at_end(model, self.id, output_ids)
            has_left = capture.keep_live(model, self.id, self._info.model)
        self.abandon()
        return has_left

    def abandon(self) -> None:
        """Abandons a sequence that failed or never had a state. Idempotent, also after `end`."""
        self._enter(None)
        self._owner = None
        self._tiers.open.discard(self.id)
        if self._tiers.running.get(self.id) is self:
            del self._tiers.running[self.id]

    def _enter(self, phase: Phase) -> None:
        if isinstance(self._phase, Hashing | PrefixFetch | Ready):
            self._phase.close()
        self._phase = phase

    def _advance(self) -> None:
        if self.epoch.is_over and isinstance(self._phase, Hashing | Resume | PrefixFetch | Ready):
            self._begin_epoch(self.chain)
        if (resume := self._resume) is not None and self._lease is not None and self._lease.is_recalled:
            self._enter(resume)
        while self._moves_on():
            pass
        if self._is_admitted and isinstance(self._phase, Ready):
            self._phase.claim()

    def _moves_on(self) -> bool:
        """Takes one step towards being ready; returns False when there is none, or it has to wait."""
        live, resume = self._tiers.live, self._resume
        if resume is not None and resume.live is not None:
            if not live.holds(resume.live, self.id):
                self._enter(self._find(resume.chain))
                return True
            if self._phase is resume:
                live.touch(resume.live)
                self._enter(Ready(self._tiers, self.id, resume))
            return False
        match self._phase:
            case Hashing() as hashing:
                return self._finish_hashing(hashing)
            case Resume() as resume:
                return self._purpose is not None and self._owner is None and self._begin_fetch(resume, self._purpose)
            case PrefixFetch() as fetch:
                return fetch.settle() and self._finish_fetch(fetch)
            case _:
                return False

    def _begin_epoch(self, chain: BlockChain | None) -> None:
        """Begins the lookup, and starts over after the cache was cleared: earlier results must not be used."""
        self.epoch = self._tiers.indexes.epoch(self._info)
        self._load = self._tiers.load(self.epoch)
        self._owner = None
        self._ask: SharedAsk | None = None
        self._absent: frozenset[RecordKey] = frozenset()
        if chain is not None:  # else it is still hashed
            self._enter(Hashing.done(chain))

    def _finish_hashing(self, hashing: Hashing) -> bool:
        """The shared tier is asked once, unless records and live states of this server reach the prompt's end, or
        nearly so."""
        load, shared = self._load, self._tiers.shared
        is_known = self.epoch.is_known or load is None or load.is_done or load.is_hopeless
        if not (hashing.hashed.done() and is_known):
            return False
        chain = hashing.hashed.result()
        if shared is not None and self._restores and hashing.ask is None:
            found, model = self._find(chain), self._info.model
            if self._rules.grid.furthest(chain.num_prompt) - found.position >= MIN_ASKED_TOKENS:
                hashing.ask = shared.ask(chain, found.match, self._rules, model, self.request_id, self._tiers.wake)
        if hashing.ask is not None and not hashing.ask.settle():
            return False
        self._ask = hashing.ask
        self._enter(self._find(chain))
        return True

    def _begin_fetch(self, resume: Resume, purpose: Purpose) -> bool:
        """Begins to fetch once memory was reserved; if there will never be room, the prompt is computed."""
        if not self._restores or not resume.position or self._num_failed > MAX_FAILED_FETCHES:
            nothing = resume.unrestored(StopReason.UNREADABLE)
        else:
            begun = begin_fetch(self._tiers, resume, purpose, self._rules, self._shape, self._ask)
            if isinstance(begun, PrefixFetch):
                self._enter(begun)
                return True
            if not begun.is_final:
                return False
            nothing = resume.because(StopReason.NO_ROOM)
        self._enter(Ready(self._tiers, self.id, nothing))
        return True

    def _finish_fetch(self, fetch: PrefixFetch) -> bool:
        is_answered = fetch.is_answered
        with self._tiers.indexes.lasting(self.epoch) as may_keep:
            has_all = may_keep and fetch.finish()
        if not may_keep:
            self._begin_epoch(fetch.resume.chain)
        elif has_all:
            self._phase = Ready(self._tiers, self.id, fetch.resume, fetch)  # which has the fetch from now on
        else:
            self._enter(fetch.resume)
            self._num_failed += 1
            self._absent |= fetch.missing
            self._is_late = not is_answered
            self._tiers.indexes.remove(fetch.gone, STORED)
            self._enter(self._find(fetch.resume.chain))
        return True

    def _look_again(self) -> None:
        """Repeats the lookup, because more may be kept by now. A completed fetch is used unless another block was
        found. A sequence that was charged only for taking a state over takes it over in any case."""
        resume = self._resume
        if resume is None or not self._restores:
            return
        is_charged = self._is_admitted and self.takes_over is not None
        now = self._find(resume.chain)
        is_better = now.live is not None or now.position >= resume.position + self._rules.grid.block_size
        if isinstance(self._phase, Resume) or (is_better and not is_charged):
            self._enter(now)

    def _follow(self, owner: "PrefixSession", until: int) -> None:
        self._owner = owner, until
        self._enter(self._resume)
        owner.expect(until)
        at_ns = self._tiers.clock.now_ns()
        self._tiers.events.emit(PrefixAwaited(self.request_id, owner.request_id, until, at_ns))

    @property
    def _is_admitted(self) -> bool:
        return self._purpose is Purpose.FETCHES

    @property
    def _resume(self) -> Resume | None:
        phase = self._phase
        return phase.resume if isinstance(phase, PrefixFetch | Ready) else phase if isinstance(phase, Resume) else None

    @property
    def _lease(self) -> Lease | None:
        fetch = self._phase.fetch if isinstance(self._phase, Ready) else self._phase
        return fetch.lease if isinstance(fetch, PrefixFetch) else None

    def _find(self, chain: BlockChain) -> Resume:
        model = self._info.model if self._restores else None
        learnt = self._ask, self._absent, self._is_late
        return find_resume(self._tiers, self.epoch, chain, self._rules, self._shape, model, *learnt)

    def _find_owner(self) -> "tuple[PrefixSession, int] | None":
        """Returns the running sequence that will compute most of this prompt, and the end position."""
        resume = self._resume
        best: tuple[PrefixSession, int] | None = None
        for other in cast("Iterable[PrefixSession]", self._tiers.running.values()):
            theirs = other.chain
            if resume is None or theirs is None or not other.is_shared or other.id == self.id:
                continue
            if other.position >= theirs.num_prompt - 1:
                continue
            target = resume.target(theirs, self._rules.grid)
            if other.position < target and (best is None or target > best[1]):
                best = other, target
        return best

    def _computing(self) -> StateCapture:
        if not isinstance(self._phase, StateCapture):
            raise IllegalTransition("prefix cache: nothing was restored, or it has ended")
        return self._phase
