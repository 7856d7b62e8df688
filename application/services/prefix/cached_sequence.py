"""One sequence's dealings with the prefix cache, from submission to its end: an `approach` to the state that it starts
from, and then the capture of what it computes. Compute thread only; see SequenceCache for who calls what.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace

from application.events import FaultObserved, PrefixMatched, StateCaptured, StateRestored
from application.ports.state_access import StateAccess
from application.services.prefix.approach import Approach
from application.services.prefix.cache_context import CacheContext
from application.services.prefix.capture import StateCapture
from application.services.prefix.explainer import told_from_memory
from application.services.prefix.fetch import Fetched
from application.services.prefix.keeper import RecordKeeper
from application.services.prefix.live_states import LIVE, Continuation
from application.services.prefix.tiers import HOT
from domain.errors import ComputeFailed, IllegalTransition
from domain.explanation import Explanation, StopReason
from domain.hashing import BlockChain
from domain.holdings import Found
from domain.ids import RequestId, SequenceId
from domain.memory.shape import MemoryShape
from domain.prefix import ReuseRules
from domain.prompt_content import EncodedPrompt
from domain.record import NamespaceInfo, Record
from domain.snapshot_policy import BEFORE_ANSWER
from domain.step_values import TakeOver


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
        self._approach = Approach(context, id, request_id, prompt, info, rules, restores=restores, shape=self._shape)
        self._capture: StateCapture | None = None

    @property
    def chain(self) -> BlockChain | None:
        return self._capture.chain if self._capture is not None else self._approach.chain

    @property
    def position(self) -> int:
        return self._capture.position if self._capture is not None else 0

    @property
    def stops(self) -> tuple[int, ...]:
        return self._capture.stops if self._capture is not None else ()

    @property
    def is_looked_up(self) -> bool:
        return self._approach.is_looked_up

    @property
    def takes_over(self) -> TakeOver | None:
        return self._approach.takes_over

    @property
    def is_admitted(self) -> bool:
        return self._approach.is_admitted

    @property
    def shares(self) -> bool:
        """Whether a later sequence may count on finding what this one computes."""
        is_kept = self._persist or bool(self._context.tiers.hot.budget_bytes)
        return is_kept and not self._approach.tenure.is_over

    def prepare(self, *, ahead: bool = False) -> None:
        self._approach.prepare(ahead=ahead)

    def poll(self) -> bool:
        return self._approach.poll()

    def restore(self, model: StateAccess) -> int:
        ready = self._approach.ready()
        if ready.live is not None and self._take_over(model, ready.live):
            return self._begin_at(ready.found, ready.live)
        found, fetched, reason = ready.found, ready.fetched, ready.found.match.reason
        if fetched is None or not self._put_back(model, found, fetched):
            if fetched is not None:  # nothing of it counts as there
                found = replace(found, holdings={})
            fetched = None
            if found.match.position and reason is not StopReason.NO_ROOM:
                reason = StopReason.UNREADABLE
        reused: Mapping[str, int] = fetched.reused if fetched is not None else {}
        told = told_from_memory(self._context.tiers, found, reused, reason, self._prompt.fork_points)
        self.explanation = told if self._restores else told.scored()
        self._announce()
        keeper = RecordKeeper(
            self._context.tiers, self._info, self._approach.tenure, found, self.request_id, persist=self._persist
        )
        start, is_canonical = (fetched.position, fetched.is_canonical) if fetched is not None else (0, True)
        if fetched is not None:
            keeper.keep_restored(found.chain, self._rules, fetched)
        return self._compute(keeper, found, start, is_canonical=is_canonical)

    def fork(self, id: SequenceId, request_id: RequestId) -> "CachedSequence":
        twin = copy(self)
        twin.id, twin.request_id, twin._expected = id, request_id, set()
        capture = twin._capture = self._computing().fork(request_id)
        num_prompt, num_reused = self.explanation.num_prompt, capture.position
        reason = StopReason.LAST_TOKEN if num_reused == num_prompt - 1 else StopReason.NEVER_SEEN
        twin.explanation = Explanation(num_prompt, reason, {HOT: num_reused}, num_known=num_reused)
        twin._announce()
        self._context.open[id] = twin
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
        self._approach.end()
        self._capture = None
        self._context.open.pop(self.id, None)

    def expect(self, position: int) -> None:
        """A later sequence waits for this one to pass `position` and will resume there."""
        self._expected.add(position)
        if self._capture is not None:
            self._capture.expect(position)

    def _computing(self) -> StateCapture:
        if self._capture is None:
            raise IllegalTransition("prefix cache: nothing was restored, or it has ended")
        return self._capture

    def _compute(
        self, keeper: RecordKeeper, found: Found, start: int, *, is_canonical: bool, first_block: int | None = None
    ) -> int:
        """From `start` on, and capture what that gives."""
        forks, rules = self._prompt.fork_points, self._rules
        capture = StateCapture(keeper, rules, found, forks, start, is_canonical=is_canonical, first_block=first_block)
        for expected in self._expected:
            capture.expect(expected)
        self._approach.end()
        self._capture = capture
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

    def _begin_at(self, found: Found, live: Continuation) -> int:
        """A state was taken over: tell it, and go on from there."""
        tiers, rules, chain, position = self._context.tiers, self._rules, found.chain, live.position
        told = live.told(found, rules.grid)
        reused = {LIVE: position}
        self.explanation = told_from_memory(tiers, told, reused, told.match.reason, self._prompt.fork_points)
        self._announce()
        keeper = RecordKeeper(tiers, self._info, self._approach.tenure, found, self.request_id, persist=self._persist)
        first_block = keeper.keep_taken_over(chain, rules, position)
        is_wanted = keeper.writes or self._shape.state_bytes(position) <= tiers.hot.budget_bytes
        can_catch_up = rules.is_cut_anywhere and is_wanted
        return self._compute(
            keeper,
            found,
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
            self._approach.tenure,
            next_turn=self._rules.grid.last_resumable(min(before, default=last)),
            num_canonical=capture.num_canonical,
            size_bytes=self._shape.state_bytes(model.position(self.id)),
        )

    def _put_back(self, model: StateAccess, found: Found, fetched: Fetched) -> bool:
        """False when the state does not fit the model: what does not fit once never will, so it is let go."""
        context = self._context
        fetched_ns = context.clock.now_ns()
        try:
            model.restore(self.id, fetched.position, fetched.block_states, fetched.snapshot_state)
        except ComputeFailed as error:
            if self.id not in model.open_ids() or model.position(self.id):
                raise
            context.events.emit(FaultObserved("cache.restore", str(error), context.clock.now_ns()))
            self._approach.set_aside()
            context.tiers.discard([record.key for record in reversed(fetched.records)])
            return False
        restored_ns = context.clock.now_ns()
        context.events.emit(
            StateRestored(
                id=self.request_id,
                position=fetched.position,
                size_bytes=fetched.size_bytes,
                started_ns=self._approach.started_ns,
                fetched_ns=fetched_ns,
                at_ns=restored_ns,
                tier_bytes=fetched.tier_bytes,
            )
        )
        return True

    def _announce(self) -> None:
        at_ns = self._context.clock.now_ns()
        self._context.events.emit(PrefixMatched.of(self.request_id, self.explanation, self._approach.started_ns, at_ns))

    def _note(self, captured: Sequence[Record], started_ns: int) -> None:
        if captured:
            at_ns = self._context.clock.now_ns()
            self._context.events.emit(StateCaptured.of(self.request_id, captured, started_ns, at_ns))


__all__ = ("CachedSequence",)
