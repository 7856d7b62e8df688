"""One prompt's way to the state that it starts from, from submission until it is restored. Compute thread only.

    Hashing ──► Found ──► Fetching ──► Ready ──► Ended      (every phase may end)
                ▲ │ └──────│────────────▲ a live state, nothing to fetch, or never any room for it
                └─│────────┘ what was found is gone, or the cache was cleared
                  ▼
               waits for a running prefill that computes more of this prompt: in the queue, see `follows`

Hashing: workers hash the prompt, and read what the store holds of the namespace if that is not known yet. Found: the
index was asked, which takes no I/O. Fetching: records are on their way into memory, which was charged before. What a
phase holds outside (reads, charges, pins, a claim) is let go of before the next one that does not need it.

A prefix that a running sequence is computing is not computed twice. A request in the queue whose prompt shares at least
a block more with it than there is already is not admitted: it keeps its place, holds nothing, and looks again when the
other has got to where the two part (there it takes one more snapshot for it), or does not run any more.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeAlias

from application.events import PrefixAwaited
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.lane import Lane
from application.services.memory_ledger import Lease, MemoryLedger, Purpose
from application.services.prefix.fetch import Fetched, PrefixFetch
from application.services.prefix.indexes import Epoch
from application.services.prefix.live_states import Continuation
from application.services.prefix.running import Running, find_owner
from application.services.prefix.tiers import PrefixTiers
from domain.errors import IllegalTransition
from domain.ids import BlockHash, RequestId, SequenceId
from domain.memory.shape import MemoryShape
from domain.prefix.explanation import StopReason
from domain.prefix.hashing import BlockChain
from domain.prefix.index import ANYWHERE, HOT, STORED
from domain.prefix.match import PrefixMatch, ReuseRules
from domain.prefix.prompt_content import EncodedPrompt
from domain.prefix.record import NamespaceInfo, RecordKey
from domain.scheduling.step_values import TakeOver

MAX_FAILED_FETCHES = 3
"""How often a lookup is repeated because what it found was gone; then the prompt is computed."""


@dataclass(frozen=True, slots=True)
class CacheContext:
    """What all sequences of one prefix cache share. `hashing`: hashes prompts. `open`: the sequences that have not
    ended, and `running` those of them that were admitted. `on_ready`: wakes the engine loop; called from workers.
    `memory`: what is fetched is reserved there."""

    tiers: PrefixTiers
    clock: Clock
    events: EventSink
    hashing: Lane
    open: set[SequenceId]
    running: dict[SequenceId, Running]
    on_ready: Callable[[], None]
    memory: MemoryLedger


@dataclass(frozen=True, slots=True)
class Found:
    """What there is to start from: records (`match`), or a `live` state that reaches at least as far."""

    chain: BlockChain
    match: PrefixMatch
    live: Continuation | None = None

    @property
    def position(self) -> int:
        return max(self.match.position, self.live.position if self.live is not None else 0)


@dataclass(frozen=True, slots=True)
class Fetching:
    found: Found
    fetch: PrefixFetch


@dataclass(frozen=True, slots=True)
class Ready:
    """`restore` may be called. `fetched`: None where no record is used."""

    found: Found
    fetched: Fetched | None = None


Phase: TypeAlias = Future[BlockChain] | Found | Fetching | Ready | None
"""None: it was restored, or is not wanted any more, and nothing is held for it."""


class Lookup:
    """`started_ns`: when it was first wanted; until then, when it began. `epoch`: what is found counts for as long as
    nobody clears the cache; then it starts over in a new one."""

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
        """`restores` False: it is looked up, and nothing is used. `shape`: what its model's state takes."""
        self.id = id
        self.started_ns = context.clock.now_ns()
        self.epoch: Epoch = context.tiers.epoch(info)
        self.is_admitted = False
        self._lease: Lease | None = None
        self._request_id = request_id
        self._context = context
        self._info = info
        self._rules = rules
        self._restores = restores
        self._shape = shape
        self._is_wanted = False
        self._absent: frozenset[RecordKey] = frozenset()
        self._num_failed = 0
        self._is_late = False
        self._owner: tuple[Running, int] | None = None
        self._load = context.tiers.load(self.epoch, context.on_ready)
        chain = context.hashing.submit(BlockChain, info.namespace, rules.grid.block_size, prompt.token_ids)
        chain.add_done_callback(lambda _: context.on_ready())
        self._phase: Phase = chain

    @property
    def chain(self) -> BlockChain | None:
        """The sequence's token stream: None until it is hashed, and when this is over."""
        match self._phase:
            case Future() as chain:
                is_known = chain.done() and not chain.cancelled() and chain.exception() is None
                return chain.result() if is_known else None
            case Found(chain):
                return chain
            case Fetching(found) | Ready(found):
                return found.chain
            case None:
                return None

    @property
    def is_looked_up(self) -> bool:
        """Whether it is known what there is to start from."""
        return not isinstance(self._phase, Future)

    @property
    def is_waiting(self) -> bool:
        """Admitted, and it waits for something that no worker does: room in memory."""
        return self.is_admitted and isinstance(self._phase, Found)

    @property
    def follows(self) -> SequenceId | None:
        return self._owner[0].id if self._owner is not None else None

    @property
    def next_block(self) -> BlockHash | None:
        """The first block of the prompt that would be computed; None where it is not known, or less than a block."""
        found = self._found()
        if found is None or not self._restores:
            return None
        index = found.position // found.chain.block_size
        return found.chain.hashes[index] if index < found.chain.num_prompt // found.chain.block_size else None

    @property
    def takes_over(self) -> TakeOver | None:
        """What the sequence goes on from without a copy, as far as is known; once it is admitted, nobody else does."""
        found = self._found()
        if found is None or found.live is None or not self._context.tiers.live.holds(found.live.state, self.id):
            return None
        return TakeOver(found.live.state.id, found.live.state.size_bytes)

    def look(self) -> None:
        """See SequenceCache."""
        self._advance()
        if self._owner is not None:
            owner, until = self._owner
            if self._context.running.get(owner.id) is owner and owner.shares and owner.position < until:
                return
            self._owner = None
            self._look_again()
        found = self._found()
        if found is None or not self._restores or not self._context.tiers.keeps_anything:
            return
        if find_owner(self.id, found.chain, found.position, self._context.running.values(), self._rules) is None:
            return
        self._look_again()
        self._follow()

    def prepare(self, *, ahead: bool) -> None:
        """See SequenceCache."""
        if not self._is_wanted:
            self._is_wanted, self.started_ns = True, self._context.clock.now_ns()
        if not ahead:
            self.is_admitted, self._owner = True, None
            if self._lease is not None:
                self._lease.admit()
            self._look_again()
        self._advance()

    def poll(self) -> bool:
        """See SequenceCache."""
        if not self._is_wanted:
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
        self._phase = Ready(found)

    def end(self) -> None:
        """Restored, or not wanted any more. Idempotent."""
        self._release()
        self._owner = self._phase = None

    def _found(self) -> Found | None:
        match self._phase:
            case Found() as found:
                return found
            case Fetching(found) | Ready(found):
                return found
            case _:
                return None

    def _release(self) -> None:
        """Let go of what the present phase holds outside."""
        if self._lease is not None:
            self._lease.end()
            self._lease = None
        self._context.tiers.live.unclaim(self.id)
        match self._phase:
            case Future() as chain:
                chain.cancel()
            case Fetching(_, fetch):
                fetch.close()
            case Ready(_, Fetched() as fetched):
                self._context.tiers.hot.release(fetched.pinned)
            case _:
                pass

    def _advance(self) -> None:
        if self.epoch.is_over and self._phase is not None:
            self._start_over()
        if isinstance(self._phase, Fetching | Ready) and self._lease is not None and self._lease.is_recalled:
            self._release()
            self._phase = self._phase.found
        while self._moves_on():
            pass
        if self.is_admitted and isinstance(self._phase, Ready) and (live := self._phase.found.live) is not None:
            self._context.tiers.live.claim(live.state, self.id)

    def _start_over(self) -> None:
        """The cache was cleared: what was found and fetched before must not come back."""
        chain = self.chain
        if chain is not None:
            self._release()
        self.epoch, self._absent, self._owner = self._context.tiers.epoch(self._info), frozenset(), None
        self._load = self._context.tiers.load(self.epoch, self._context.on_ready)
        if chain is not None:
            hashed = Future[BlockChain]()
            hashed.set_result(chain)
            self._phase = hashed

    def _moves_on(self) -> bool:
        """Take one step towards being ready; False when there is none, or it has to wait."""
        live = self._context.tiers.live
        match self._phase:
            case Future() as chain if chain.done() and self._knows_store():
                self._phase = self._best(chain.result())
                return True
            case Found() | Ready() if (found := self._found()) and found.live is not None:
                if not live.holds(found.live.state, self.id):
                    self._phase = self._best(found.chain)
                    return True
                if isinstance(self._phase, Found):
                    live.note_wanted(found.live.state)
                    self._phase = Ready(found)
                return False
            case Found() as found if self._is_wanted and self._owner is None:
                return self._begin_fetch(found)
            case Fetching(found, fetch):
                return fetch.settle() and self._take_fetched(found, fetch)
            case _:
                return False

    def _knows_store(self) -> bool:
        """Whether the index is as complete as it gets in time."""
        return self.epoch.is_known or self._load is None or self._load.is_done or self._load.is_hopeless

    def _best(self, chain: BlockChain) -> Found:
        """What gets the prompt furthest. A live state goes before records that reach no further, because taking it over
        copies nothing. Of a store that did not answer nothing is used any more."""
        place = HOT if self._is_late else ANYWHERE
        match = self._context.tiers.match(self.epoch, chain, self._rules, self._absent, place)
        if self._is_late and match.position < self._rules.grid.furthest(chain.num_prompt):
            match = match.because(StopReason.SLOW_STORE)
        live = self._context.tiers.live.find(chain, self._info.model, self._rules.grid) if self._restores else None
        return Found(chain, match, live if live is not None and live.position >= match.position else None)

    def _look_again(self) -> None:
        """More may be there by now. What is fetched already is kept unless a block more is; and whoever is charged as
        one that takes a state over, for no more than that, does so all the same."""
        found = self._found()
        if found is None or not self._restores:
            return
        is_charged = self.is_admitted and self.takes_over is not None
        now = self._best(found.chain)
        is_better = now.live is not None or now.position >= found.position + self._rules.grid.block_size
        if isinstance(self._phase, Found) or (is_better and not is_charged):
            self._release()
            self._phase = now

    def _follow(self) -> None:
        found = self._found()
        if found is None:
            return
        self._owner = find_owner(self.id, found.chain, found.position, self._context.running.values(), self._rules)
        if self._owner is not None:
            owner, until = self._owner
            self._release()
            self._phase = found
            owner.expect(until)
            at_ns = self._context.clock.now_ns()
            self._context.events.emit(PrefixAwaited(self._request_id, owner.request_id, until, at_ns))

    def _begin_fetch(self, found: Found) -> bool:
        """Begin to fetch, once that has been charged; without ever having room, compute it all."""
        context, position = self._context, found.match.position
        if not self._restores or not position or self._num_failed > MAX_FAILED_FETCHES:
            self._phase = Ready(found)
            return True
        cold_bytes = self._shape.state_bytes(self._num_cold(found))
        span_bytes = self._shape.state_bytes(position)
        purpose = Purpose.FETCHES if self.is_admitted else Purpose.AHEAD
        lease = context.memory.reserve(purpose, cold_bytes, span_bytes)
        if isinstance(lease, Lease):
            self._lease = lease
            fetch = PrefixFetch(context.tiers, found.chain, found.match, self._rules, context.on_ready)
            self._phase = Fetching(found, fetch)
        elif lease.is_final:
            self._phase = Ready(replace(found, match=found.match.because(StopReason.NO_ROOM)))
        return isinstance(lease, Lease) or lease.is_final

    def _num_cold(self, found: Found) -> int:
        """Tokens of the match that are to be read."""
        size, needs, last = found.chain.block_size, found.match.blocks, found.match.snapshot
        held = self._context.tiers.hot.held([*(need.key for need in needs), *([last] if last is not None else [])])
        num_cold = sum(size for need, here in zip(needs, held, strict=False) if here is None or not need.groups <= here)
        return num_cold + (last.num_partial if last is not None and held[-1] is None else 0)

    def _take_fetched(self, found: Found, fetch: PrefixFetch) -> bool:
        is_answered = fetch.is_answered
        with self._context.tiers.indexes.lasting(self.epoch) as may_keep:
            fetched = fetch.finish() if may_keep else None
        if not may_keep:
            self._start_over()
        elif fetched is not None:
            if self._lease is not None:
                self._lease.resize(fetched.loose_bytes)
            self._phase = Ready(found, fetched)
        else:
            self._release()
            self._num_failed += 1
            self._absent |= fetch.missing
            self._is_late = not is_answered
            if is_answered:
                self._context.tiers.indexes.remove(fetch.missing, STORED)
            self._phase = self._best(found.chain)
        return True
