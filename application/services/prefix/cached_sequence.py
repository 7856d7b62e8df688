"""The prefix cache of one sequence whose state can be captured, from submission to its end. Compute thread only.

It is a `Lookup` until `restore` puts the state in place, by records or by a live state that it takes over. From then on
a StateCapture keeps what the sequence computes.
"""

from collections.abc import Callable, Sequence

from application.events import FaultObserved, PrefixMatched, StateCaptured, StateRestored
from application.ports.state_access import StateAccess, StateMisfit
from application.services.prefix.capture import StateCapture
from application.services.prefix.explainer import explained, match_with_live
from application.services.prefix.fetch import PrefixFetch
from application.services.prefix.lookup import Lookup
from domain.errors import ComputeFailed, IllegalTransition
from domain.prefix.explanation import Explanation, StopReason
from domain.prefix.hashing import BlockChain
from domain.prefix.index import PERSISTED
from domain.prefix.record import Record
from domain.prefix.snapshot_policy import BEFORE_ANSWER

_UNRESTORED = (StopReason.NO_ROOM, StopReason.SLOW_STORE, StopReason.SLOW_SHARED)
"""Reasons that say already why what was found was not restored."""


class CachedSequence(Lookup):
    """A SequenceCache of a model whose state can be captured."""

    _capture: StateCapture | None = None
    _was_taken_over = False

    @property
    def chain(self) -> BlockChain | None:
        return self._capture.chain if self._capture is not None else super().chain

    @property
    def position(self) -> int:
        return self._capture.position if self._capture is not None else 0

    @property
    def stops(self) -> tuple[int, ...]:
        return self._capture.stops if self._capture is not None else ()

    def expect(self, position: int) -> None:
        super().expect(position)
        if self._capture is not None:
            self._capture.expect(position)

    def restore(self, model: StateAccess) -> int:
        resume, fetch = self._resume, self._fetch
        if not self._is_ready or resume is None:
            raise IllegalTransition("prefix cache: restored before it was ready")
        live, match, reason = resume.live, resume.match, StopReason.UNREADABLE
        try:
            if live is not None:
                self._tiers.live.take_over(live, self.id, resume.live_position)
            elif fetch is not None:
                self._put_back(model, fetch)
        except ComputeFailed as error:
            reason = self._failed(model, error)
            live = fetch = None
        start, is_canonical, reused, shown = 0, True, dict[str, int](), match
        if live is not None:
            self._was_taken_over, start = True, resume.live_position
            is_canonical, reused = start <= live.num_canonical, {self._tiers.live.name: start}
            shown = match_with_live(match, start, resume.chain, self._rules.grid)
        elif fetch is not None:
            start, is_canonical, reused = fetch.position, fetch.is_canonical, dict(fetch.num_reused)
        elif resume.position and match.reason not in _UNRESTORED:
            shown = match = match.because(reason)
        found = explained(self._tiers, resume.chain, shown, reused, self._forks)
        self._report(found if self._restores else found.scored())
        self._capture = StateCapture(
            self._tiers,
            self.epoch,
            self._rules,
            resume.chain,
            match,
            self._forks,
            start,
            request_id=self.request_id,
            persist=self._persist,
            is_canonical=is_canonical,
            restored=fetch.blocks if fetch is not None else (),
            shared=fetch.shared if fetch is not None else None,
            taken_over_bytes=self._shape.state_bytes(start) if live is not None else None,
        )
        for position in self._expected:
            self._capture.expect(position)
        self.end_lookup()
        return start

    def prefilled(self, model: StateAccess, position: int) -> None:
        self._capture_with(lambda capture: capture.after_prefill(model, self.id, position))

    def paced(self, num_tokens: int, duration_ns: int) -> None:
        if self._tiers.shared is not None:
            self._tiers.shared.note_pace(self._info.model, num_tokens, duration_ns)

    def decoded(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        self._capture_with(lambda capture: capture.after_decode(model, self.id, output_ids))

    def suspend(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        self._capture_with(lambda capture: capture.at_pause(model, self.id, output_ids))

    def end(self, model: StateAccess, output_ids: Sequence[int]) -> bool:
        has_left = False
        if (capture := self._capture) is not None:
            self._capture_with(lambda capture: capture.at_end(model, self.id, output_ids))
            has_left = self._leave(model, capture)
        self.abandon()
        return has_left

    def abandon(self) -> None:
        self.end_lookup()
        self._capture = None
        self._tiers.open.discard(self.id)
        if self._tiers.running.get(self.id) is self:
            del self._tiers.running[self.id]

    def _computing(self) -> StateCapture:
        if self._capture is None:
            raise IllegalTransition("prefix cache: nothing was restored, or it has ended")
        return self._capture

    def _capture_with(self, take: Callable[[StateCapture], Sequence[Record]]) -> None:
        started_ns = self._tiers.clock.now_ns()
        captured = take(self._computing())
        if captured:
            at_ns = self._tiers.clock.now_ns()
            self._tiers.events.emit(StateCaptured.of(self.request_id, captured, started_ns, at_ns))

    def _put_back(self, model: StateAccess, fetch: PrefixFetch) -> None:
        """Restores the state from records. Raises ComputeFailed."""
        fetched_ns = self._tiers.clock.now_ns()
        model.restore(self.id, fetch.position, fetch.block_states, fetch.snapshot_state)
        self._tiers.events.emit(
            StateRestored(
                id=self.request_id,
                position=fetch.position,
                size_bytes=sum(fetch.tier_bytes.values()),
                started_ns=self.started_ns,
                fetched_ns=fetched_ns,
                at_ns=self._tiers.clock.now_ns(),
                tier_bytes=fetch.tier_bytes,
            )
        )

    def _failed(self, model: StateAccess, error: ComputeFailed) -> StopReason:
        """Reports a failure to restore and returns the reason to give: the prompt is computed. Records are dropped only
        if they do not fit the model. Raises the error when the sequence is not open and empty any more."""
        if self.id not in model.open_ids() or model.position(self.id):
            raise error
        tiers, fetch = self._tiers, self._fetch
        tiers.events.emit(FaultObserved("cache.restore" if fetch else "cache.live", str(error), tiers.clock.now_ns()))
        if fetch is None or not isinstance(error, StateMisfit):
            return StopReason.RESTORE_FAILED
        keys = [record.key for record in reversed(fetch.records)]
        self._release()
        tiers.indexes.remove(keys, PERSISTED)  # from memory at once; a worker deletes them from the store
        tiers.discard(keys)
        return StopReason.UNREADABLE

    def _leave(self, model: StateAccess, capture: StateCapture) -> bool:
        """Leaves the state in the live tier, unless all of it was copied from records. Returns False when the sequence
        is still open."""
        if capture.position == capture.start and not self._was_taken_over:
            return False
        before = {fork.position for fork in self._forks if fork.kind in BEFORE_ANSWER}
        last = capture.chain.num_prompt - 1
        return self._tiers.live.leave(
            model,
            self.id,
            capture.chain,
            self.epoch,
            self._info.model,
            next_turn=self._rules.grid.last_resumable(min(before, default=last)),
            num_canonical=capture.num_canonical,
            size_bytes=self._shape.state_bytes(model.position(self.id)),
        )

    def _report(self, explanation: Explanation) -> None:
        self.explanation = explanation
        at_ns = self._tiers.clock.now_ns()
        self._tiers.events.emit(PrefixMatched.of(self.request_id, explanation, self.started_ns, at_ns))
