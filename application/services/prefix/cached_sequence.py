"""One sequence's dealings with the prefix cache, from submission to its end: it moves through `phases`.

Compute thread only. What takes time happens in workers: they hash the prompt and ask the stores at once, while the
sequence waits in the engine's queue. When it is wanted, their answer is compared with what is in memory by then, with
what other sequences are computing, and with what came in since it was given. See SequenceCache for who calls what.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TypeVar

from application.events import FaultObserved, PrefixAwaited, PrefixMatched, StateCaptured, StateRestored
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.state_access import StateAccess
from application.services.lane import Lane
from application.services.prefix.capture import StateCapture
from application.services.prefix.explainer import told_from_memory
from application.services.prefix.fetch import Fetched, PrefixFetch
from application.services.prefix.flights import Flights, Leave
from application.services.prefix.in_flight import find_owner
from application.services.prefix.keeper import RecordKeeper
from application.services.prefix.phases import (
    Asking,
    Computing,
    Ended,
    Fetching,
    Following,
    Held,
    Phase,
    Queued,
    Ready,
    chain_of,
    checked,
)
from application.services.prefix.tiers import HOT, PrefixTiers, Question
from domain.errors import ComputeFailed, IllegalTransition
from domain.explanation import Explanation, StopReason
from domain.hashing import BlockChain
from domain.holdings import Found
from domain.ids import RequestId, SequenceId
from domain.memory.shape import MemoryShape
from domain.prefix import ReuseRules
from domain.prompt_content import EncodedPrompt
from domain.record import NamespaceInfo, Record, RecordKey

MAX_FAILED_FETCHES = 3
"""How often a lookup is repeated because what it found was gone; then the prompt is computed."""

P = TypeVar("P", bound=Phase)


@dataclass(frozen=True, slots=True)
class CacheContext:
    """What all sequences of one cache share. `hashing`: hashes prompts. `on_ready`: wakes the engine loop; called
    from workers. `flights`: charges what they fetch."""

    tiers: PrefixTiers
    clock: Clock
    events: EventSink
    hashing: Lane
    open: "dict[SequenceId, CachedSequence]"
    on_ready: Callable[[], None]
    flights: Flights = field(default_factory=Flights)


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
        self._is_ahead = False
        self._started_ns = context.clock.now_ns()
        self._tenure = context.tiers.tenures.begin(info)
        self._absent: frozenset[RecordKey] = frozenset()
        self._num_failed = 0
        self._expected: set[int] = set()
        self._phase: Phase = Queued(self._look_up())

    @property
    def chain(self) -> BlockChain | None:
        return chain_of(self._phase)

    @property
    def position(self) -> int:
        return self._phase.capture.position if isinstance(self._phase, Computing) else 0

    @property
    def stops(self) -> tuple[int, ...]:
        return self._phase.capture.stops if isinstance(self._phase, Computing) else ()

    @property
    def shares(self) -> bool:
        """Whether a later sequence may count on finding what this one computes."""
        is_kept = self._persist or bool(self._context.tiers.hot.budget_bytes)
        return is_kept and not self._tenure.is_over

    def prepare(self, *, ahead: bool = False) -> None:
        self._is_ahead = ahead
        if not ahead:
            self._context.flights.admitted(self.id)
        if isinstance(self._phase, Queued):
            self._started_ns = self._context.clock.now_ns()
            self._enter(Asking(self._phase.question))
        self._advance()

    def poll(self) -> bool:
        if isinstance(self._phase, Queued):
            raise IllegalTransition("prefix cache: polled before it was prepared")
        self._advance()
        return isinstance(self._phase, Ready)

    def restore(self, model: StateAccess) -> int:
        ready = self._in(Ready)
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
            self._context.tiers, self._info, self._tenure, found, self.request_id, persist=self._persist
        )
        start, is_canonical = (fetched.position, fetched.is_canonical) if fetched is not None else (0, True)
        forks = self._prompt.fork_points
        capture = StateCapture(keeper, self._rules, found, forks, start, is_canonical=is_canonical)
        for expected in self._expected:
            capture.expect(expected)
        if fetched is not None:
            keeper.keep_restored(found.chain, self._rules, fetched)
        self._release()
        self._enter(Computing(capture))
        return start

    def fork(self, id: SequenceId, request_id: RequestId) -> "CachedSequence":
        twin = copy(self)
        twin.id, twin.request_id, twin._expected = id, request_id, set()
        capture = self._in(Computing).capture.fork(request_id)
        twin._phase = Computing(capture)
        num_prompt, num_reused = self.explanation.num_prompt, capture.position
        reason = StopReason.LAST_TOKEN if num_reused == num_prompt - 1 else StopReason.NEVER_SEEN
        twin.explanation = Explanation(num_prompt, reason, {HOT: num_reused}, num_known=num_reused)
        twin._announce()
        self._context.open[id] = twin
        return twin

    def prefilled(self, model: StateAccess, position: int) -> None:
        started = self._context.clock.now_ns()
        self._note(self._in(Computing).capture.after_prefill(model, self.id, position), started)

    def decoded(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        started = self._context.clock.now_ns()
        self._note(self._in(Computing).capture.after_decode(model, self.id, output_ids), started)

    def end(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        if isinstance(self._phase, Computing):
            started = self._context.clock.now_ns()
            self._note(self._phase.capture.at_end(model, self.id, output_ids), started)
        self.abandon()

    def suspend(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        started = self._context.clock.now_ns()
        self._note(self._in(Computing).capture.at_pause(model, self.id, output_ids), started)

    def abandon(self) -> None:
        self._release()
        self._enter(Ended())
        self._context.open.pop(self.id, None)

    def expect(self, position: int) -> None:
        """A later sequence waits for this one to pass `position` and will resume there."""
        self._expected.add(position)
        if isinstance(self._phase, Computing):
            self._phase.capture.expect(position)

    def _in(self, kind: type[P]) -> P:
        """The present phase, which must be of this kind."""
        if not isinstance(self._phase, kind):
            raise IllegalTransition(f"prefix cache: {type(self._phase).__name__} where {kind.__name__} is needed")
        return self._phase

    def _enter(self, phase: Phase) -> None:
        self._phase = checked(self._phase, phase)

    def _release(self) -> None:
        """Let go of what the present phase holds outside."""
        self._context.flights.end(self.id)
        match self._phase:
            case Queued(question) | Asking(question):
                if not question.cancel():
                    question.add_done_callback(_abandon)
            case Fetching(_, fetch):
                fetch.close()
            case Ready(_, Fetched() as fetched):
                self._context.tiers.hot.release(fetched.pinned)
            case _:
                pass

    def _advance(self) -> None:
        if self._tenure.is_over and isinstance(self._phase, Asking | Following | Held | Fetching | Ready):
            self._start_over()
        if isinstance(self._phase, Fetching | Ready) and self._context.flights.must_yield(self.id):
            self._release()
            self._enter(Held(self._phase.found))
        while self._moves_on():
            pass

    def _start_over(self) -> None:
        """The cache was cleared: what was asked and fetched before must not come back."""
        self._release()
        self._tenure = self._context.tiers.tenures.begin(self._info)
        if self.chain is None:
            self._enter(Asking(self._look_up()))
        else:
            self._ask(self.chain)

    def _moves_on(self) -> bool:
        """Take one step towards being ready; False when there is none, or it has to wait."""
        match self._phase:
            case Asking(question, is_repeat):
                return question.done() and self._take_answer(question.result(), is_repeat=is_repeat)
            case Following(chain, owner, until):
                if owner.id in self._context.open and owner.shares and owner.position < until:
                    return False
                self._ask(chain)
                return True
            case Held(found):
                return self._fetch(found)
            case Fetching(found, fetch):
                return fetch.is_settled and self._take_fetched(found, fetch)
            case _:
                return False

    def _look_up(self) -> Future[Question]:
        """Hash the prompt and ask the stores, in workers."""
        context, info, grid, prompt = self._context, self._info, self._rules.grid, self._prompt

        def work() -> Question:
            chain = BlockChain(info.namespace, grid.block_size, prompt.content)
            return context.tiers.ask(chain, context.on_ready)

        question = context.hashing.submit(work)
        question.add_done_callback(lambda _: context.on_ready())
        return question

    def _ask(self, chain: BlockChain, *, is_repeat: bool = False) -> None:
        question: Future[Question] = Future()
        question.set_result(self._context.tiers.ask(chain, self._context.on_ready))
        self._enter(Asking(question, is_repeat))

    def _take_answer(self, question: Question, *, is_repeat: bool) -> bool:
        if not question.is_settled:
            return False
        question.abandon()
        tiers = self._context.tiers
        found = tiers.match(question.chain, self._rules, question.answers(), self._absent)
        if not is_repeat and tiers.is_outdated(question, found, self._rules):
            self._ask(question.chain, is_repeat=True)
        else:
            self._decide(found)
        return True

    def _decide(self, found: Found) -> None:
        """Wait for an earlier sequence, start fetching, or be ready to compute from the start."""
        if not self._restores:  # what was found is known to be there, and not written again
            self._enter(Ready(found))
            return
        context, tiers = self._context, self._context.tiers
        others = context.open.values() if tiers.keeps_anything else ()
        helped = find_owner(self.id, found.chain, found.match.position, others, self._rules.grid)
        if helped is not None:
            owner, until = helped
            owner.expect(until)
            context.events.emit(PrefixAwaited(self.request_id, owner.request_id, until, context.clock.now_ns()))
            self._enter(Following(found.chain, owner, until))
        elif found.match.position and self._num_failed <= MAX_FAILED_FETCHES:
            self._enter(Held(found))
        else:
            self._enter(Ready(found))

    def _fetch(self, found: Found) -> bool:
        """Begin to fetch, once that has been charged; without ever having room, compute it all."""
        context = self._context
        cold_bytes = self._shape.state_bytes(found.num_cold(HOT))
        span_bytes = self._shape.state_bytes(found.match.position)
        leave = context.flights.begin(self.id, cold_bytes, span_bytes, is_ahead=self._is_ahead)
        if leave is Leave.GO:
            self._enter(Fetching(found, PrefixFetch(context.tiers, found, self._rules, context.on_ready)))
        elif leave is Leave.NEVER:
            self._enter(Ready(replace(found, match=replace(found.match, reason=StopReason.NO_ROOM))))
        return leave is not Leave.WAIT

    def _take_fetched(self, found: Found, fetch: PrefixFetch) -> bool:
        is_answered, tiers = fetch.is_answered, self._context.tiers
        with self._tenure.held() as may_keep:
            fetched = fetch.finish() if may_keep else None
        if not may_keep:
            self._start_over()
        elif fetched is not None:
            self._context.flights.landed(self.id, fetched.loose_bytes)
            self._enter(Ready(found, fetched))
        elif is_answered:
            self._release()
            self._num_failed += 1
            self._absent |= fetch.missing
            self._ask(found.chain)
        else:
            self._release()
            self._decide(tiers.match(found.chain, self._rules, tiers.unanswered(), self._absent | fetch.missing))
        return True

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
            self._release()
            self._enter(Ready(found))
            context.tiers.discard([record.key for record in reversed(fetched.records)])
            return False
        restored_ns = context.clock.now_ns()
        context.events.emit(
            StateRestored(
                id=self.request_id,
                position=fetched.position,
                size_bytes=fetched.size_bytes,
                started_ns=self._started_ns,
                fetched_ns=fetched_ns,
                at_ns=restored_ns,
                tier_bytes=fetched.tier_bytes,
            )
        )
        return True

    def _announce(self) -> None:
        at_ns = self._context.clock.now_ns()
        self._context.events.emit(PrefixMatched.of(self.request_id, self.explanation, self._started_ns, at_ns))

    def _note(self, captured: Sequence[Record], started_ns: int) -> None:
        if captured:
            at_ns = self._context.clock.now_ns()
            self._context.events.emit(StateCaptured.of(self.request_id, captured, started_ns, at_ns))


def _abandon(question: Future[Question]) -> None:
    if not question.cancelled() and question.exception() is None:
        question.result().abandon()


__all__ = ("CacheContext", "CachedSequence")
