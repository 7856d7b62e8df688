"""A sequence's way to the state it starts from, from submission until it is restored: it moves through `phases`.

What a phase holds outside (reads, charges, pins, a claim) goes on into the next one, or is let go of before it. Which
phase is next is a matter of what has come by now; where there is a choice, `start_choice` makes it.

Compute thread only. What takes time happens in workers: they hash the prompt and ask the stores at once, while the
sequence waits in the engine's queue. When it is wanted, their answer is compared with what is in memory by then, with
what other sequences are computing, and with what came in since it was given.
"""

from concurrent.futures import Future
from dataclasses import replace

from application.events import PrefixAwaited
from application.services.prefix.cache_context import CacheContext
from application.services.prefix.fetch import Fetched, PrefixFetch
from application.services.prefix.flights import Leave
from application.services.prefix.live_states import Continuation
from application.services.prefix.phases import (
    Asking,
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
from application.services.prefix.start_choice import StartChoice
from application.services.prefix.tenure import Tenure
from application.services.prefix.tiers import HOT, Question
from domain.errors import IllegalTransition
from domain.explanation import StopReason
from domain.hashing import BlockChain
from domain.holdings import Found
from domain.ids import RequestId, SequenceId
from domain.memory.shape import MemoryShape
from domain.prefix import ReuseRules
from domain.prompt_content import EncodedPrompt
from domain.record import NamespaceInfo
from domain.step_values import TakeOver


class Approach:
    """`started_ns`: when it was first wanted; until then, when it began. `tenure`: what
    is found counts for as long as nobody clears the cache; then it starts over in a new one."""

    def __init__(
        self,
        context: CacheContext,
        id: SequenceId,
        request_id: RequestId,
        prompt: EncodedPrompt,
        info: NamespaceInfo,
        rules: ReuseRules,
        *,
        restores: bool,
        shape: MemoryShape,
    ) -> None:
        """`restores` False: it is looked up, and nothing is fetched. `shape`: what its model's state takes."""
        self.id = id
        self.started_ns = context.clock.now_ns()
        self.tenure: Tenure = context.tiers.tenures.begin(info)
        self._request_id = request_id
        self._context = context
        self._prompt = prompt
        self._info = info
        self._rules = rules
        self._choice = StartChoice(context, id, info, rules, restores=restores)
        self._shape = shape
        self._is_ahead = True
        self._phase: Phase = Queued(self._look_up())

    @property
    def chain(self) -> BlockChain | None:
        """The sequence's token stream: None until it is hashed, and when this is over."""
        return chain_of(self._phase)

    @property
    def is_admitted(self) -> bool:
        """Whether its sequence has left the queue."""
        return not self._is_ahead

    @property
    def is_looked_up(self) -> bool:
        """Whether it is known what there is to start from."""
        return not isinstance(self._phase, Queued | Asking)

    @property
    def takes_over(self) -> TakeOver | None:
        """What the sequence goes on from without a copy, as far as is known; once it is admitted, nobody else does."""
        match self._phase:
            case Ready(_, _, Continuation(state)) if self._context.tiers.live.holds(state, self.id):
                return TakeOver(state.id, state.size_bytes)
            case _:
                return None

    def prepare(self, *, ahead: bool) -> None:
        """See SequenceCache."""
        self._is_ahead = ahead
        if not ahead:
            self._context.flights.admitted(self.id)
            self._look_again()
        if isinstance(self._phase, Queued):
            self.started_ns = self._context.clock.now_ns()
            self._enter(Asking(self._phase.question))
        self._advance()

    def poll(self) -> bool:
        """See SequenceCache."""
        if isinstance(self._phase, Queued):
            raise IllegalTransition("prefix cache: polled before it was prepared")
        self._advance()
        return isinstance(self._phase, Ready)

    def ready(self) -> Ready:
        """What there is to restore; it is held until this ends."""
        if not isinstance(self._phase, Ready):
            raise IllegalTransition(f"prefix cache: restored while {type(self._phase).__name__}")
        return self._phase

    def set_aside(self) -> None:
        """What was fetched cannot be restored: let it go, and start from nothing."""
        found = self.ready().found
        self._release()
        self._enter(Ready(found))

    def end(self) -> None:
        """Restored, or not wanted any more. Idempotent."""
        if not isinstance(self._phase, Ended):
            self._release()
            self._enter(Ended())

    def _enter(self, phase: Phase) -> None:
        self._phase = checked(self._phase, phase)

    def _release(self) -> None:
        """Let go of what the present phase holds outside."""
        self._context.flights.end(self.id)
        self._context.tiers.live.unclaim(self.id)
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
        if self.tenure.is_over and isinstance(self._phase, Asking | Following | Held | Fetching | Ready):
            self._start_over()
        if isinstance(self._phase, Fetching | Ready) and self._context.flights.must_yield(self.id):
            self._release()
            self._enter(Held(self._phase.found))
        while self._moves_on():
            pass
        match self._phase:
            case Ready(_, _, Continuation(state)) if not self._is_ahead:
                self._context.tiers.live.claim(state, self.id)
            case _:
                pass

    def _start_over(self) -> None:
        """The cache was cleared: what was asked and fetched before must not come back."""
        self._release()
        self.tenure = self._context.tiers.tenures.begin(self._info)
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
                if self._choice.may_follow(owner, is_ahead=self._is_ahead) and owner.position < until:
                    return False
                self._ask(chain)
                return True
            case Held(found):
                return self._fetch(found)
            case Fetching(found, fetch):
                return fetch.is_settled and self._take_fetched(found, fetch)
            case Ready(found, _, Continuation(state)) if not self._context.tiers.live.holds(state, self.id):
                self._ask(found.chain)
                return True
            case _:
                return False

    def _look_up(self) -> Future[Question]:
        """Hash the prompt and ask the stores, in workers."""
        context, info, grid, prompt = self._context, self._info, self._rules.grid, self._prompt

        def work() -> Question:
            chain = BlockChain(info.namespace, grid.block_size, prompt.token_ids)
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
        found = self._choice.match(question.chain, question.answers())
        if not is_repeat and self._context.tiers.is_outdated(question, found, self._rules):
            self._ask(question.chain, is_repeat=True)
        else:
            self._decide(found)
        return True

    def _decide(self, found: Found) -> None:
        """Wait for an earlier sequence, start fetching, or be ready to go on or to compute from the start."""
        chosen = self._choice.best(found, is_ahead=self._is_ahead)
        match chosen:
            case Following(_, owner, until):
                owner.expect(until)
                at_ns = self._context.clock.now_ns()
                self._context.events.emit(PrefixAwaited(self._request_id, owner.request_id, until, at_ns))
            case Ready(_, _, Continuation(state)):
                self._context.tiers.live.note_wanted(state)
            case _:
                pass
        self._enter(chosen)

    def _look_again(self) -> None:
        """There may be something better by now."""
        if isinstance(self._phase, Ready):
            better = self._choice.better(self._phase, is_charged=self.takes_over is not None)
            if better is not None:
                self._release()
                self._enter(better)

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
        is_answered = fetch.is_answered
        with self.tenure.held() as may_keep:
            fetched = fetch.finish() if may_keep else None
        if not may_keep:
            self._start_over()
        elif fetched is not None:
            self._context.flights.landed(self.id, fetched.loose_bytes)
            self._enter(Ready(found, fetched))
        elif is_answered:
            self._release()
            self._choice.note_gone(fetch.missing)
            self._ask(found.chain)
        else:
            self._release()
            self._decide(self._choice.in_memory(found.chain, fetch.missing))
        return True


def _abandon(question: Future[Question]) -> None:
    if not question.cancelled() and question.exception() is None:
        question.result().abandon()


__all__ = ("Approach",)
