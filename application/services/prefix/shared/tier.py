"""The shared tier: a store that other servers fill as well, behind the local one.

Its content cannot be known, so it is asked once for each prompt, for what the index lacks; the answer counts for that
lookup only. What is found is fetched with the other records, verified like them, and kept in the hot tier and the local
store. It is asked and read by workers, and a request never loses more than the deadline to it:

    asked             for the deadline at most, then the prompt is looked up without it
    fetched           for what is left of the deadline, plus the time that computing what has arrived would have taken

A store that is late or fails is not asked until a trial beside the requests has succeeded. There are no timers: while
a lookup waits, the compute thread looks again every few milliseconds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from application.ports.cache_stats import Cleared, SharedStats
from application.ports.shared_store import SharedHint, SharedStoreError
from application.services.lane import Call, Lane
from application.services.prefix.record_source import Arrived
from application.services.prefix.shared.access import ASK, LATE, READ, WRITE, SharedAccess, SharedQueue
from domain.errors import ServerUnavailable
from domain.ids import NO_REQUEST, RequestId
from domain.models.pace import MEASURED_TOKENS
from domain.prefix.fingerprint import NamespaceFilter
from domain.prefix.hashing import BlockChain
from domain.prefix.index import NOTHING_SHARED, PrefixMatch, RecordNeed, ReuseRules, SharedRecords
from domain.prefix.record import BlockKey, Record, RecordKey

T = TypeVar("T")

NUM_CALLERS = 4
MAX_CALLS = 1024
"""Calls that wait or run; more are not made."""

RECORDS_PER_CALL, BYTES_PER_CALL = 4, 4 << 20
"""The limits of one call, but for a single record: a caller verifies and decodes while another receives."""

MAX_SNAPSHOTS = 256
"""Snapshots that are looked for, the last ones: any client may have chosen the lengths."""

ASSUMED_TOKENS_PER_S = 10_000
"""The rate at which a model computes prompts, until it was measured."""

MIN_ASKED_TOKENS = 32
"""Fewer tokens are computed as soon as they are asked for."""


class SharedFinds(NamedTuple):
    """The answer: records for the index, the hints to read them, and when it came."""

    records: SharedRecords = NOTHING_SHARED
    hints: Mapping[RecordKey, SharedHint] = {}
    at_ns: int = 0


def calls_of(hints: Sequence[SharedHint]) -> Iterator[slice]:
    """Yields the part of the hints that each call reads."""
    start = num_bytes = 0
    for at, hint in enumerate(hints):
        num_bytes += hint.size_bytes
        if at > start and (at - start == RECORDS_PER_CALL or num_bytes > BYTES_PER_CALL):
            yield slice(start, at)
            start, num_bytes = at, hint.size_bytes
    if hints:
        yield slice(start, len(hints))


class SharedAsk:
    """The question for one prompt, and the source of the records that it found. Compute thread only. `finds`: empty
    until it `settled`. `is_late`: the store did not answer in time, now or when it was read."""

    name = "shared"

    def __init__(self, tier: "SharedTier", call: Call[SharedFinds], model: str, id: RequestId) -> None:
        self.finds, self.is_late, self.id = SharedFinds(), False, id
        self._tier, self._model = tier, model
        self._call: Call[SharedFinds] | None = call
        self._began_ns, self._left_ns = tier.access.clock.now_ns(), tier.access.deadline_ns

    def settle(self) -> bool:
        """Returns True when the answer has come or is not waited for any longer."""
        if (call := self._call) is None:
            return True
        if call.is_done:
            self.finds, self._call = call.answer or SharedFinds(), None
            self._left_ns = max(0, self._left_ns - max(0, self.finds.at_ns - self._began_ns))
        elif self.is_overdue(self._began_ns, 0):
            call.abandon()
            self._call = None
            self._give_up(self._began_ns, ASK, 0)
        return self._call is None

    def begin_reads(
        self, needs: Sequence[RecordNeed], on_done: Callable[[], None], reader: object
    ) -> list[tuple[slice, Call[Arrived] | None]]:
        """Begins to read records that it found; see RecordSource."""
        hints = [self.finds.hints[need.key] for need in needs]
        return [(part, self._tier.read(hints[part], self.id, on_done)) for part in calls_of(hints)]

    def is_overdue(self, began_ns: int, num_arrived: int) -> bool:
        """Returns whether what was begun then is waited for no longer. The state of `num_arrived` tokens has arrived,
        and need not be computed."""
        tier, pace = self._tier, self._tier.ns_per_token.get(self._model, 1e9 / ASSUMED_TOKENS_PER_S)
        tier.awaited_ns = now_ns = tier.access.clock.now_ns()
        return now_ns - began_ns >= self._left_ns + num_arrived * pace

    def note_late(self, began_ns: int, num_records: int) -> None:
        """Goes on without records that did not arrive in time."""
        self._give_up(began_ns, READ, num_records)

    def _give_up(self, began_ns: int, operation: str, num_records: int) -> None:
        self.is_late, self._left_ns = True, 0
        self._tier.access.report(operation, LATE, num_records, began_ns, self.id)
        self._tier.access.note_late()

    def abandon(self) -> None:
        if self._call is not None:
            self._call.abandon()


class SharedTier:
    """Any thread, but `ask`, what it returns, and `note_pace` belong to the compute thread. `uploaded`: what a worker
    makes of the records that it read. `ns_per_token`: of computing a prompt at best, by model."""

    name = SharedAsk.name

    def __init__(self, access: SharedAccess, queue: SharedQueue, calls: Lane | None = None) -> None:
        self.access, self.queue = access, queue
        self.uploaded: Callable[[Sequence[Record | None]], Sequence[Record | None]] = list
        self.awaited_ns: int | None = None
        self.ns_per_token: dict[str, float] = {}
        self._is_clearing = False
        self._calls = calls or Lane("shared", NUM_CALLERS, max_pending=MAX_CALLS)
        self._try_again()

    @property
    def is_available(self) -> bool:
        return self.access.is_closed and not self._is_clearing

    @property
    def is_awaited(self) -> bool:
        """True while a lookup waits for the store, which may be late: the compute thread has to look again soon."""
        at_ns = self.awaited_ns
        return at_ns is not None and self.access.clock.now_ns() - at_ns < self.access.deadline_ns

    def ask(
        self,
        chain: BlockChain,
        match: PrefixMatch,
        rules: ReuseRules,
        model: str,
        id: RequestId,
        on_done: Callable[[], None],
    ) -> SharedAsk | None:
        """Asks what the store has of a prompt beyond `match`. Returns None while it is not asked: it failed lately, or
        is being cleared."""
        self._try_again()
        call = self._call(partial(self.find, chain, match, rules, id), on_done) if self.is_available else None
        return SharedAsk(self, call, model, id) if call is not None else None

    def find(self, chain: BlockChain, match: PrefixMatch, rules: ReuseRules, id: RequestId = NO_REQUEST) -> SharedFinds:
        """Returns what the store has of a prompt beyond `match`; nothing when it fails. Blocks for the store."""
        access, began_ns = self.access, self.access.clock.now_ns()
        try:
            finds = self._find(chain, match, rules)
        except Exception as error:
            access.report(ASK, access.failed(error), 0, began_ns, id)
            return SharedFinds(at_ns=access.clock.now_ns())
        access.report(ASK, "found" if finds.hints else "nothing", len(finds.hints), began_ns, id)
        return finds._replace(at_ns=access.clock.now_ns())

    def read(self, hints: Sequence[SharedHint], id: RequestId, on_done: Callable[[], None]) -> Call[Arrived] | None:
        """Reads records in a worker; None when too many calls wait already."""
        return self._call(partial(self._read, hints, id), on_done)

    def note_pace(self, model: str, num_tokens: int, duration_ns: int) -> None:
        """Notes how long a model took to compute a chunk of a prompt. The fastest counts: no fetch may be slower."""
        if num_tokens >= MEASURED_TOKENS:
            ns = duration_ns / num_tokens
            self.ns_per_token[model] = min(ns, self.ns_per_token.get(model, ns))

    def clear(self, choice: NamespaceFilter, clear_own: Callable[[], Cleared]) -> Cleared:
        """Clears the other tiers, then removes the chosen namespaces from the store; asks nothing meanwhile. Other
        servers may put what they still have. Blocks; one call at a time."""
        self._is_clearing, cleared = True, Cleared()
        try:
            cleared = clear_own()
            self.queue.erase(None if choice.is_everything else choice.includes)
        except (SharedStoreError, ServerUnavailable) as error:
            return cleared.plus(Cleared(problem=f"what the shared store holds is left there: {error}"))
        finally:
            self._is_clearing = False
        return cleared

    def stats(self) -> SharedStats:
        self._try_again()
        access, counts = self.access, sorted(self.access.counts.copy().items())
        asked, read, written = (
            {outcome: number for (one, outcome), number in counts if one == operation}
            for operation in (ASK, READ, WRITE)
        )
        num_bytes, queue = (access.num_bytes[READ], access.num_bytes[WRITE]), self.queue
        return SharedStats(
            access.is_closed, access.num_outages, asked, read, written, queue.num_queued, queue.queued_bytes, *num_bytes
        )

    def close(self, timeout_s: float) -> None:
        """Refuses further work, and drops what is not written after `timeout_s`. Running calls are not waited for."""
        self._calls.close()
        self.queue.close(timeout_s if self.access.is_closed else 0.0)
        self.access.store.close()

    def _try_again(self) -> None:
        if self.access.begins_trial() and self._call(self.access.try_again, lambda: None) is None:
            self.access.note_late()

    def _call(self, work: Callable[[], T], on_done: Callable[[], None]) -> Call[T] | None:
        call = Call(work)
        call.future.add_done_callback(lambda future: None if future.cancelled() else on_done())
        try:
            self._calls.start(call)
        except ServerUnavailable:  # too many wait, or it is stopping
            return None
        return call

    def _find(self, chain: BlockChain, match: PrefixMatch, rules: ReuseRules) -> SharedFinds:
        size, store = chain.block_size, self.access.store
        first = match.num_known // size
        keys = chain.prompt_keys()[first:]
        found = store.find(keys)
        hints: dict[RecordKey, SharedHint] = {hint.key: hint for hint in found if hint is not None}
        blocks = frozenset(key.hash for key in hints if isinstance(key, BlockKey))
        run = first + next((at for at, hint in enumerate(found) if hint is None), len(keys))
        last = min(run, (chain.num_prompt - 1) // size)  # the last token is always computed
        # Where blocks hold everything, only the tail behind the last one is worth a snapshot.
        ends = range(match.position // size if rules.needs_snapshots else last, last + 1)
        lengths = store.lengths(chain.namespace, [chain.parent(index) for index in ends])
        near = [at * size + length for at, some in zip(ends, lengths, strict=True) for length in some if length < size]
        own = [at for at in near if match.position < at < chain.num_prompt and rules.grid.is_resumable(at)]
        named = {chain.snapshot_key(at): at for at in sorted(own)[-MAX_SNAPSHOTS:]}
        there = {hint.key: hint for hint in (store.find(list(named)) if named else ()) if hint is not None}
        snapshots = {at: key for key, at in named.items() if key in there}
        return SharedFinds(SharedRecords(blocks, snapshots), hints | there)

    def _read(self, hints: Sequence[SharedHint], id: RequestId) -> Arrived:
        access = self.access
        began_ns = access.clock.now_ns()
        try:
            found = access.store.read(hints)
        except Exception as error:
            access.report(READ, access.failed(error), len(hints), began_ns, id)
            return [None] * len(hints), ()
        num_missing = sum(record is None for record in found.records) - found.num_rejected
        access.report(READ, "read", len(hints) - num_missing - found.num_rejected, began_ns, id, found.num_bytes)
        access.report(READ, "rejected", found.num_rejected, began_ns, id)
        access.report(READ, "missing", num_missing, began_ns, id)
        return self.uploaded(found.records), found.encoded
