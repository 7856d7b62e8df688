"""One sequence's dealings with the prefix cache, from submission to its end: a `lookup` of the state that it starts
from, and then the capture of what it computes. Compute thread only; see SequenceCache for who calls what.
"""

from collections.abc import Mapping, Sequence
from copy import copy

from application.events import FaultObserved, PrefixMatched, StateCaptured, StateRestored
from application.ports.state_access import StateAccess
from application.services.prefix.capture import StateCapture
from application.services.prefix.explainer import explained
from application.services.prefix.fetch import Fetched
from application.services.prefix.keeper import RecordKeeper
from application.services.prefix.live_states import LIVE, Continuation
from application.services.prefix.lookup import CacheContext, Lookup
from application.services.prefix.tiers import HOT
from domain.errors import ComputeFailed, IllegalTransition
from domain.ids import BlockHash, RequestId, SequenceId
from domain.memory.shape import MemoryShape
from domain.prefix.explanation import Explanation, StopReason
from domain.prefix.hashing import BlockChain
from domain.prefix.index import PERSISTED
from domain.prefix.match import PrefixMatch, ReuseRules
from domain.prefix.prompt_content import EncodedPrompt
from domain.prefix.record import NamespaceInfo, Record
from domain.prefix.snapshot_policy import BEFORE_ANSWER
from domain.scheduling.step_values import TakeOver


class CachedSequence:
    """A SequenceCache of a model whose state can be captured."""

    def __init__(
        self,
        context: CacheContext,
        id: SequenceId,
        request_id: RequestId,
        prompt: EncodedPrompt,
        info: NamespaceInfo,
        rules: ReuseRules,
        *,
        persist: bool = True,
        restores: bool = True,
        shape: MemoryShape | None = None,
    ) -> None:
        """`shape`: what its model's state takes; None charges nothing before it is fetched."""
        self.id = id
        self.request_id = request_id
        self.explanation = Explanation(len(prompt.token_ids), StopReason.NEVER_SEEN)
        self._context = context
        self._prompt = prompt
        self._info = info
        self._rules = rules
        self._persist = persist
        self._restores = restores
        self._shape = shape or MemoryShape()
        self._expected: set[int] = set()
        self._lookup = Lookup(context, id, request_id, prompt, info, rules, restores=restores, shape=self._shape)
        self._capture: StateCapture | None = None

    @property
    def chain(self) -> BlockChain | None:
        return self._capture.chain if self._capture is not None else self._lookup.chain

    @property
    def position(self) -> int:
        return self._capture.position if self._capture is not None else 0

    @property
    def stops(self) -> tuple[int, ...]:
        return self._capture.stops if self._capture is not None else ()

    @property
    def is_looked_up(self) -> bool:
        return self._lookup.is_looked_up

    @property
    def is_waiting(self) -> bool:
        return self._lookup.is_waiting

    @property
    def follows(self) -> SequenceId | None:
        return self._lookup.follows

    @property
    def next_block(self) -> BlockHash | None:
        return self._lookup.next_block

    @property
    def takes_over(self) -> TakeOver | None:
        return self._lookup.takes_over

    @property
    def shares(self) -> bool:
        """Whether it gets on, and a later sequence may count on finding what it computes."""
        is_kept = self._persist or bool(self._context.tiers.hot.budget_bytes)
        is_running = self._capture is not None or (self._lookup.is_admitted and not self._lookup.is_waiting)
        return is_kept and is_running and not self._lookup.epoch.is_over

    def look(self) -> None:
        self._lookup.look()

    def prepare(self, *, ahead: bool = False) -> None:
        if not ahead:
            self._context.running[self.id] = self
        self._lookup.prepare(ahead=ahead)

    def poll(self) -> bool:
        return self._lookup.poll()

    def restore(self, model: StateAccess) -> int:
        ready = self._lookup.ready()
        chain, match, live, fetched = ready.found.chain, ready.found.match, ready.found.live, ready.fetched
        if live is not None and self._take_over(model, live):
            return self._begin_at(chain, match, live)
        if fetched is None or not self._put_back(model, fetched):
            fetched = None
            if match.position and match.reason not in (StopReason.NO_ROOM, StopReason.SLOW_STORE):
                match = match.because(StopReason.UNREADABLE)
        reused: Mapping[str, int] = fetched.reused if fetched is not None else {}
        self._explain(explained(self._context.tiers, chain, match, reused, self._prompt.fork_points))
        keeper = self._keeper()
        if fetched is None:
            return self._compute(keeper, chain, match, 0, is_canonical=True)
        keeper.keep_restored(match, fetched)
        return self._compute(keeper, chain, match, fetched.position, is_canonical=fetched.is_canonical)

    def fork(self, id: SequenceId, request_id: RequestId) -> "CachedSequence":
        twin = copy(self)
        twin.id, twin.request_id, twin._expected, twin._restores = id, request_id, set(), True
        capture = twin._capture = self._computing().fork(request_id)
        num_prompt, num_reused = self.explanation.num_prompt, capture.position
        reason = StopReason.LAST_TOKEN if num_reused == num_prompt - 1 else StopReason.NEVER_SEEN
        twin._explain(Explanation(num_prompt, reason, {HOT: num_reused}, num_known=num_reused))
        self._context.open.add(id)
        self._context.running[id] = twin
        return twin

    def prefilled(self, model: StateAccess, position: int) -> None:
        started = self._context.clock.now_ns()
        self._note(self._computing().after_prefill(model, self.id, position), started)

    def decoded(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        started = self._context.clock.now_ns()
        self._note(self._computing().after_decode(model, self.id, output_ids), started)

    def end(self, model: StateAccess, output_ids: Sequence[int]) -> bool:
        is_left = False
        if (capture := self._capture) is not None:
            started = self._context.clock.now_ns()
            self._note(capture.at_end(model, self.id, output_ids), started)
            is_left = self._leave(model, capture)
        self.abandon()
        return is_left

    def suspend(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        started = self._context.clock.now_ns()
        self._note(self._computing().at_pause(model, self.id, output_ids), started)

    def abandon(self) -> None:
        self._lookup.end()
        self._capture = None
        self._context.open.discard(self.id)
        if self._context.running.get(self.id) is self:
            del self._context.running[self.id]

    def expect(self, position: int) -> None:
        """A later sequence waits for this one to pass `position` and will resume there."""
        self._expected.add(position)
        if self._capture is not None:
            self._capture.expect(position)

    def _computing(self) -> StateCapture:
        if self._capture is None:
            raise IllegalTransition("prefix cache: nothing was restored, or it has ended")
        return self._capture

    def _keeper(self) -> RecordKeeper:
        context, epoch = self._context, self._lookup.epoch
        return RecordKeeper(context.tiers, epoch, self._info, self._rules, self.request_id, persist=self._persist)

    def _compute(
        self,
        keeper: RecordKeeper,
        chain: BlockChain,
        match: PrefixMatch,
        start: int,
        *,
        is_canonical: bool,
        first_block: int | None = None,
    ) -> int:
        """From `start` on, and capture what that gives."""
        self._capture = StateCapture(
            keeper,
            self._rules,
            chain,
            match,
            self._prompt.fork_points,
            start,
            is_canonical=is_canonical,
            first_block=first_block,
        )
        for expected in self._expected:
            self._capture.expect(expected)
        self._lookup.end()
        return start

    def _take_over(self, model: StateAccess, live: Continuation) -> bool:
        """False when that failed, and everything is computed."""
        context = self._context
        try:
            context.tiers.live.take_over(live, self.id)
        except ComputeFailed as error:
            if self.id not in model.open_ids() or model.position(self.id):
                raise
            context.events.emit(FaultObserved("cache.live", str(error), context.clock.now_ns()))
            return False
        return True

    def _begin_at(self, chain: BlockChain, match: PrefixMatch, live: Continuation) -> int:
        """A state was taken over: tell it, and go on from there."""
        tiers, position = self._context.tiers, live.position
        told = live.told(chain, match, self._rules.grid)
        self._explain(explained(tiers, chain, told, {LIVE: position}, self._prompt.fork_points))
        keeper = self._keeper()
        first_block = keeper.keep_taken_over(chain, match, position)
        is_wanted = keeper.writes or self._shape.state_bytes(position) <= tiers.hot.budget_bytes
        can_catch_up = self._rules.is_cut_anywhere and is_wanted
        return self._compute(
            keeper,
            chain,
            match,
            position,
            is_canonical=live.is_canonical,
            first_block=first_block if can_catch_up else None,
        )

    def _leave(self, model: StateAccess, capture: StateCapture) -> bool:
        """Leave the state to who goes on from it. False when it is still open: nothing was computed since it was put
        there, so whatever is kept of it is where it came from."""
        if capture.position == capture.start:
            return False
        before = {fork.position for fork in self._prompt.fork_points if fork.kind in BEFORE_ANSWER}
        last = capture.chain.num_prompt - 1
        return self._context.tiers.live.leave(
            model,
            self.id,
            capture.chain,
            self._lookup.epoch,
            self._info.model,
            next_turn=self._rules.grid.last_resumable(min(before, default=last)),
            num_canonical=capture.num_canonical,
            size_bytes=self._shape.state_bytes(model.position(self.id)),
        )

    def _put_back(self, model: StateAccess, fetched: Fetched) -> bool:
        """False when the state does not fit the model: what does not fit once never will, so it is let go."""
        context = self._context
        fetched_ns = context.clock.now_ns()
        try:
            model.restore(self.id, fetched.position, fetched.block_states, fetched.snapshot_state)
        except ComputeFailed as error:
            if self.id not in model.open_ids() or model.position(self.id):
                raise
            context.events.emit(FaultObserved("cache.restore", str(error), context.clock.now_ns()))
            self._lookup.set_aside()
            keys = [record.key for record in reversed(fetched.records)]
            context.tiers.indexes.remove(keys, PERSISTED)  # at once; the store is told by a worker
            context.tiers.discard(keys)
            return False
        restored_ns = context.clock.now_ns()
        context.events.emit(
            StateRestored(
                id=self.request_id,
                position=fetched.position,
                size_bytes=fetched.size_bytes,
                started_ns=self._lookup.started_ns,
                fetched_ns=fetched_ns,
                at_ns=restored_ns,
                tier_bytes=fetched.tier_bytes,
            )
        )
        return True

    def _explain(self, told: Explanation) -> None:
        self.explanation = told if self._restores else told.scored()
        at_ns = self._context.clock.now_ns()
        self._context.events.emit(PrefixMatched.of(self.request_id, self.explanation, self._lookup.started_ns, at_ns))

    def _note(self, captured: Sequence[Record], started_ns: int) -> None:
        if captured:
            at_ns = self._context.clock.now_ns()
            self._context.events.emit(StateCaptured.of(self.request_id, captured, started_ns, at_ns))
