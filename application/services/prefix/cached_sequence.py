"""One sequence's dealings with the prefix cache, from admission to its end. Compute thread only.

    begin ──► asking the store ──► fetching ──► ready ──► restored ──► computing ──► ended
                ▲     │    ▲           │
                │     ▼    └───────────┘ what was found is gone
              waiting for an earlier sequence

A store that does not answer in time is done without: asking ends with what is in memory, fetching with what arrived.
See SequenceCache for who calls what.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from application.events import FaultObserved, PrefixAwaited, PrefixMatched, StateCaptured, StateRestored
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.state_access import StateAccess
from application.ports.tokenizer import EncodedPrompt
from application.services.prefix.capture import Captured, StateCapture
from application.services.prefix.fetch import Fetched, PrefixFetch
from application.services.prefix.in_flight import Prefilling, find_owner
from application.services.prefix.store_lanes import StoreRead
from application.services.prefix.tiers import NOTHING_STORED, Lookup, PrefixTiers, StoredPrefix
from domain.errors import ComputeFailed
from domain.explanation import Explanation, StopReason, compared_with_stored, nearest_fork
from domain.hashing import BlockChain
from domain.ids import RequestId, SequenceId
from domain.prefix import ReuseRules
from domain.record import BlockKey, NamespaceInfo, Record, RecordKey

NUM_NEIGHBOURS = 8
"""Token runs in the hot tier that a prompt is compared with where it leaves what is stored; microseconds each."""

MAX_FAILED_FETCHES = 3
"""How often a lookup is repeated because what it found was gone; then the prompt is computed."""


@dataclass(frozen=True, slots=True)
class CacheContext:
    """What all sequences of one cache share. `on_ready`: wakes the engine loop; called from workers."""

    tiers: PrefixTiers
    clock: Clock
    events: EventSink
    open: "dict[SequenceId, CachedSequence]"
    on_ready: Callable[[], None]


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
        persist: bool = True,
    ) -> None:
        self.id = id
        self.request_id = request_id
        self.prompt_ids = prompt.token_ids
        self.chain = BlockChain(info.namespace, rules.block_size)
        self.chain.feed(prompt.token_ids)
        self.position = 0
        self._context = context
        self._prompt = prompt
        self._info = info
        self._rules = rules
        self._persist = persist
        self._started_ns = context.clock.now_ns()
        self._asked: StoreRead[StoredPrefix] | None = None
        self._leader: SequenceId | None = None
        self._owner: tuple[CachedSequence, int] | None = None
        self._fetch: PrefixFetch | None = None
        self._fetched: Fetched | None = None
        self._capture: StateCapture | None = None
        self._absent: frozenset[RecordKey] = frozenset()
        self._unread: frozenset[RecordKey] = frozenset()
        self._num_failed = 0
        self._expected: set[int] = set()
        self._tenure = context.tiers.tenures.begin(info)
        self._lookup: Lookup
        self.explanation = Explanation(len(self.prompt_ids), 0, 0, StopReason.NEVER_SEEN)
        self._ask()
        self.poll()

    @property
    def stops(self) -> tuple[int, ...]:
        return self._capture.stops if self._capture is not None else ()

    @property
    def shares(self) -> bool:
        """Whether a later sequence may count on finding what this one computes."""
        is_kept = self._persist or bool(self._context.tiers.hot.budget_bytes)
        return is_kept and not self._tenure.is_over

    def poll(self) -> bool:
        if self._tenure.is_over:
            self._start_over()
        while self._moves_on():
            pass
        return self._asked is None and self._owner is None and (self._fetch is None or self._fetched is not None)

    def _start_over(self) -> None:
        """What was asked and fetched has been cleared meanwhile."""
        if self._asked is not None:
            self._asked.abandon()
            self._asked = None
        self._owner = None
        self._close_fetch()
        self._tenure = self._context.tiers.tenures.begin(self._info)
        self._ask()

    def restore(self, model: StateAccess) -> int:
        lookup, fetched = self._lookup, self._fetched
        position, reason, is_canonical = 0, lookup.match.reason, True
        if fetched is not None and self._restore(model, fetched):
            position, is_canonical = fetched.position, fetched.is_canonical
            self.explanation = self._explain(fetched.num_hot, fetched.num_store, reason)
        else:
            self.explanation = self._explain(0, 0, StopReason.UNREADABLE if lookup.match.position else reason)
        self._announce()
        self.position = position
        self._capture = StateCapture(
            self._context.tiers,
            self._info,
            self.chain,
            self._rules,
            self._prompt,
            self._lookup,
            position,
            is_canonical=is_canonical,
            tenure=self._tenure,
            persist=self._persist,
        )
        for expected in self._expected:
            self._capture.expect(expected)
        self._persist_restored()
        self._close_fetch()
        return position

    def prefilled(self, model: StateAccess, position: int) -> None:
        if self._capture is not None:
            started = self._context.clock.now_ns()
            self._note(self._capture.after_prefill(model, self.id, position), started)
            self.position = position

    def decoded(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        if self._capture is not None:
            started = self._context.clock.now_ns()
            self._note(self._capture.after_decode(model, self.id, output_ids), started)

    def end(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        if self._capture is not None:
            started = self._context.clock.now_ns()
            self._note(self._capture.at_end(model, self.id, output_ids), started)
        self.abandon()

    def abandon(self) -> None:
        self._capture = None
        if self._asked is not None:
            self._asked.abandon()
        self._close_fetch()
        self._context.open.pop(self.id, None)

    def expect(self, position: int) -> None:
        """A later sequence waits for this one to pass `position` and will resume there."""
        self._expected.add(position)
        if self._capture is not None:
            self._capture.expect(position)

    def _moves_on(self) -> bool:
        """Take one step towards being ready; False when there is none, or it has to wait."""
        if self._asked is not None:
            return self._take_answer(self._asked)
        if self._owner is not None:
            owner, target = self._owner
            if owner.id in self._context.open and owner.shares and owner.position < target:
                return False
            self._owner = None
            self._ask()
            return True
        if self._fetch is not None and self._fetched is None:
            return self._take_fetched(self._fetch)
        return False

    def _ask(self) -> None:
        """Let a worker ask the store, if there is one that answers."""
        context = self._context
        self._unread = frozenset()
        if context.tiers.store is None:
            self._decide(NOTHING_STORED)
            return
        leader = self._find_owner(0)
        self._leader = leader[0].id if leader is not None else None
        self._asked = context.tiers.ask(self.prompt_ids, self.chain, context.on_ready)
        if self._asked is None:
            self._decide(None)

    def _take_answer(self, asked: StoreRead[StoredPrefix]) -> bool:
        if not (asked.is_done or asked.is_hopeless):
            return False
        asked.abandon()
        self._asked = None
        if asked.is_done and self._leader is not None and self._leader not in self._context.open:
            self._ask()  # what it has left since may not be in the answer
        else:
            self._decide(asked.answer if asked.is_done else None)
        return True

    def _decide(self, stored: StoredPrefix | None) -> None:
        """Wait for an earlier sequence, start fetching, or be ready to compute from the start."""
        context = self._context
        absent = self._absent | self._unread
        self._lookup = context.tiers.match(self.prompt_ids, self.chain, self._rules, stored, absent)
        found = self._find_owner(self._lookup.match.position)
        if found is not None and (owner := context.open.get(found[0].id)) is not None:
            self._owner = (owner, found[1])
            owner.expect(found[1])
            context.events.emit(PrefixAwaited(self.request_id, owner.request_id, found[1], context.clock.now_ns()))
        elif self._lookup.match.position and self._num_failed <= MAX_FAILED_FETCHES:
            self._fetch = PrefixFetch(context.tiers, self._lookup, self.prompt_ids, self._rules, context.on_ready)

    def _find_owner(self, reusable: int) -> tuple[Prefilling, int] | None:
        tiers, step = self._context.tiers, self._rules.grid if self._rules.is_exact else 1
        others = [other for other in self._context.open.values() if other.shares] if tiers.keeps_anything else ()
        return find_owner(self, reusable, others, step)

    def _take_fetched(self, fetch: PrefixFetch) -> bool:
        if not (fetch.is_done or fetch.is_hopeless):
            return False
        is_answered = fetch.is_answered
        with self._tenure.held() as may_keep:
            if not may_keep:  # cleared meanwhile: it must not come back into the hot tier; the next poll starts over
                return False
            self._fetched = fetch.finish()
        if self._fetched is None:
            self._close_fetch()
            if is_answered or self._context.tiers.store is None:
                self._num_failed += 1
                self._absent |= fetch.missing
                self._ask()
            else:
                self._unread |= fetch.missing
                self._decide(None)
        return True

    def _restore(self, model: StateAccess, fetched: Fetched) -> bool:
        context = self._context
        fetched_ns = context.clock.now_ns()
        try:
            model.restore(self.id, fetched.position, fetched.blocks, fetched.snapshot)
        except ComputeFailed as error:
            if self.id not in model.open_ids() or model.position(self.id):
                raise
            # What does not fit once never will: let it go and compute.
            context.events.emit(FaultObserved("cache.restore", str(error), context.clock.now_ns()))
            self._close_fetch()
            match = self._lookup.match
            keys: list[RecordKey] = [match.snapshot] if match.snapshot is not None else []
            context.tiers.discard([*keys, *(need.key for need in reversed(match.blocks))])
            self._lookup = Lookup(match, (), (), {})
            return False
        context.events.emit(
            StateRestored(
                self.request_id,
                fetched.position,
                fetched.size_bytes,
                self._started_ns,
                fetched_ns,
                context.clock.now_ns(),
            )
        )
        return True

    def _persist_restored(self) -> None:
        """What only the hot tier has is offered again, or nothing after it could be stored: the writer once refused it,
        or it was computed for a request whose state must not be stored."""
        if self._fetch is None or self._fetched is None or not self._persist:
            return
        records, reach = list[Record](), self._fetched.position
        for index in range(len(self._lookup.match.blocks)):
            if not self._lookup.is_stored[index]:
                record = self._fetch.record_at(index)
                if record is None or frozenset(record.groups) != self._rules.sliced_groups:
                    reach = index * self._rules.block_size
                    break
                records.append(record)
        snapshots = self._hot_snapshots(reach)
        with self._tenure.held() as may_keep:
            if may_keep:
                self._context.tiers.store_behind(self._info, sorted([*records, *snapshots], key=_by_position))
        self._context.tiers.hot.release([record.key for record in snapshots])

    def _hot_snapshots(self, reach: int) -> list[Record]:
        """The prompt's snapshots that only the hot tier has, hanging on blocks up to `reach`; to be released."""
        lookup, hot = self._lookup, self._context.tiers.hot
        keys = [
            key
            for position, key in lookup.snapshots.items()
            if position not in lookup.stored_snapshots and position - key.num_partial <= reach
        ]
        found = hot.acquire(keys, [self._rules.snapshot_groups(key.num_partial) for key in keys])
        return [record for record in found if record is not None]

    def _close_fetch(self) -> None:
        if self._fetch is not None:
            self._fetch.close()
            self._fetch = None
            self._fetched = None

    def _explain(self, num_hot: int, num_store: int, reason: StopReason) -> Explanation:
        """What RAM can tell of it: the prefix cache's `explain` asks the store as well."""
        chain, num_known = self.chain, self._lookup.match.num_known
        told = Explanation(len(self.prompt_ids), num_hot, num_store, reason, num_known=num_known)
        if reason is not StopReason.LAST_TOKEN:
            parent = chain.parent(num_known // chain.block_size)
            stored = self._context.tiers.hot.followers(chain.namespace, parent, NUM_NEIGHBOURS)
            told = compared_with_stored(told, self.prompt_ids, stored)
        at = told.divergence.position if told.divergence is not None else told.stopped_at
        return replace(told, nearest_fork=nearest_fork(self._prompt.fork_points, at))

    def _announce(self) -> None:
        told, context = self.explanation, self._context
        context.events.emit(
            PrefixMatched(
                self.request_id,
                told.num_prompt,
                told.num_hot,
                told.num_store,
                told.num_known,
                told.reason.value,
                self._started_ns,
                context.clock.now_ns(),
                told.divergence.position if told.divergence is not None else None,
            )
        )

    def _note(self, captured: Captured, started_ns: int) -> None:
        if captured.num_blocks or captured.num_snapshots:
            self._context.events.emit(
                StateCaptured(
                    self.request_id,
                    captured.num_blocks,
                    captured.num_snapshots,
                    captured.size_bytes,
                    started_ns,
                    self._context.clock.now_ns(),
                )
            )


def _by_position(record: Record) -> tuple[int, bool]:
    """Parents first."""
    return record.position, not isinstance(record.key, BlockKey)


__all__ = ("CacheContext", "CachedSequence")
