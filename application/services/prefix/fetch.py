"""One prefix on its way from the tiers to a sequence: hot records at once, the others read and decoded by workers.

A record is used only if it is what its key says: the prompt's own ids, the position, all groups that are needed and, in
exact mode, computed on the grid. Keys of records that are not are in `missing`, and the lookup is repeated without
them: eviction and faults between lookup and fetch cost time, and never give a wrong state. A store that hangs costs one
read timeout: what has arrived by then is kept. The shared tier has a deadline of its own, which begins with the fetch.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from application.events import StateRestored
from application.ports.shared_store import SharedRead
from application.ports.state_access import StateAccess
from application.services.lane import Call
from application.services.memory_leases import Lease, Purpose, Refused
from application.services.prefix.resume import Resume
from application.services.prefix.shared.access import READ
from application.services.prefix.shared.tier import SharedAsk, SharedTier, calls_of
from application.services.prefix.store_tier import StoreRead
from application.services.prefix.tiers import PrefixTiers
from domain.ids import RequestId, SequenceId
from domain.memory.shape import MemoryShape
from domain.prefix.index import PERSISTED, RecordNeed, ReuseRules
from domain.prefix.record import BlockKey, Provenance, Record, RecordKey

RECORDS_PER_READ = 4
"""Records of one read, which arrive together and are uploaded together: the first uploads begin after so many, and so
many are left to upload when the last was decoded. Each read has its own timeout."""

_Records: TypeAlias = Sequence[Record | None]
_Read: TypeAlias = tuple[Sequence[int], StoreRead[_Records] | Call[SharedRead]]
"""Indices into the records, and the read that brings them."""


def begin_fetch(
    tiers: PrefixTiers,
    resume: Resume,
    purpose: Purpose,
    rules: ReuseRules,
    shape: MemoryShape,
    ask: SharedAsk | None,
) -> "PrefixFetch | Refused":
    """Begins to fetch once memory was reserved for what is not hot."""
    needs = resume.match.needs
    num_cold = sum(need.num_tokens for need, is_hot in zip(needs, tiers.hot.holds(needs), strict=True) if not is_hot)
    lease = tiers.memory.reserve(purpose, shape.state_bytes(num_cold), shape.state_bytes(resume.match.position))
    return PrefixFetch(tiers, resume, lease, rules, ask) if isinstance(lease, Lease) else lease


class PrefixFetch:
    """The records of one match. Compute thread only. It pins hot records until `close`, and ends the `lease` then.

    `position`: where the sequence resumes with them. `records`: its blocks from the start, then its snapshot if it has
    one; `missing`: the keys of those that could not be read; `gone`: those of them that the store does not have. All
    are final once `finish` returned. `shared`: the keys of what is read from the shared tier, with the records in the
    form in which they arrived, for the store.
    """

    def __init__(
        self,
        tiers: PrefixTiers,
        resume: Resume,
        lease: Lease,
        rules: ReuseRules,
        ask: SharedAsk | None = None,
    ) -> None:
        """`lease`: of the memory for what is not hot. `ask`: what the shared tier has of the prompt."""
        match = resume.match
        self.resume, self.lease = resume, lease
        self.position = match.position
        self.missing: frozenset[RecordKey] = frozenset()
        self.gone: frozenset[RecordKey] = frozenset()
        self._tiers = tiers
        self._is_exact = rules.grid.is_exact
        self._needs = match.needs
        self._keys = [need.key for need in match.needs]
        self._found = tiers.hot.acquire(self._keys, [need.groups for need in match.needs])
        self._pinned = [record.key for record in self._found if record is not None]
        self._cold = [index for index, record in enumerate(self._found) if record is None]
        self._reads: list[_Read] = []
        self._unread = set(self._cold)  # the store has not answered, or failed
        self._ask = ask
        self._began_ns = tiers.clock.now_ns()
        self._far_reads: list[_Read] = []
        self.shared: dict[RecordKey, Record | None] = self._begin_far_reads()
        self._num_far = sum(need.num_tokens for need in match.needs if need.key in self.shared)
        self._is_begun = self._begin_reads([index for index in self._cold if self._keys[index] not in self.shared])

    @property
    def records(self) -> list[Record]:
        return [record for record in self._found if record is not None]

    @property
    def blocks(self) -> list[Record]:
        return [record for record in self.records if isinstance(record.key, BlockKey)]

    @property
    def loose_bytes(self) -> int:
        """Bytes of records that are not in the hot tier."""
        kept = set(self._pinned)
        return sum(record.raw_bytes for record in self.records if record.key not in kept)

    @property
    def is_canonical(self) -> bool:
        """True when all of it was computed on the grid."""
        return all(record.provenance is Provenance.PREFILL for record in self.records)

    @property
    def num_reused(self) -> Mapping[str, int]:
        """Tokens by the tier that they come from, `position` in all."""
        return self._by_tier(lambda record: len(record.key_ids))

    @property
    def is_answered(self) -> bool:
        """True when the store has answered for all of its records that are not hot; False when it was or is stuck."""
        return self._is_begun and all(read.is_done for _, read in self._reads)

    def settle(self) -> bool:
        """Returns True when every read has arrived or timed out. Where this thread has to upload, it uploads one read a
        call, so that other sequences compute in between."""
        store = self._tiers.store
        if store.uploads_on_compute_thread:
            done = [pair for pair in (*self._reads, *self._far_reads) if pair[1].is_done]
            if done:
                self._take(done[0])
            if len(done) > 1:
                self._tiers.wake()
                return False
        return self._is_far_settled and (not self._is_begun or self.is_answered or store.is_stuck)

    def finish(self) -> bool:
        """Takes the reads that arrived, once settled. Returns False when `missing` names records that did not arrive in
        time."""
        late = [pair for pair in self._far_reads if not pair[1].is_done]
        for pair in [*self._reads, *self._far_reads]:
            if pair[1].is_done:
                self._take(pair)
            else:
                pair[1].abandon()
        if late and self._ask is not None:
            self._ask.note_late(self._began_ns, READ, sum(len(indices) for indices, _ in late))
        pairs = zip(self._needs, self._found, strict=True)
        self.missing = frozenset(need.key for need, record in pairs if not self._is_as_promised(need, record))
        self.gone = self.missing - self.shared.keys() - {self._keys[index] for index in self._unread}
        self._promote()
        self._tiers.store.touch([key for key in self._keys if key not in self.missing])
        self.lease.resize(self.loose_bytes)
        return not self.missing

    def restore(self, model: StateAccess, id: SequenceId, request_id: RequestId, started_ns: int) -> None:
        """Restores the state of an open, empty sequence, which has waited since `started_ns`. Raises ComputeFailed."""
        fetched_ns, tier_bytes = self._tiers.clock.now_ns(), self._by_tier(lambda record: record.raw_bytes)
        pairs = zip(self.blocks, self._needs, strict=False)
        blocks = [{group: record.groups[group] for group in need.groups} for record, need in pairs]
        last = self.records[-1]
        model.restore(id, self.position, blocks, {} if isinstance(last.key, BlockKey) else last.groups)
        self._tiers.events.emit(
            StateRestored(
                id=request_id,
                position=self.position,
                size_bytes=sum(tier_bytes.values()),
                started_ns=started_ns,
                fetched_ns=fetched_ns,
                at_ns=self._tiers.clock.now_ns(),
                tier_bytes=tier_bytes,
            )
        )

    def close(self) -> None:
        """Abandons outstanding reads, unpins, and ends the lease. Idempotent."""
        self.lease.end()
        for _, read in (*self._reads, *self._far_reads):
            read.abandon()
        pinned, self._pinned = self._pinned, []
        self._tiers.hot.release(pinned)

    @property
    def _is_far_settled(self) -> bool:
        """True when the shared tier's records have arrived, or are waited for no longer."""
        late = [indices for indices, read in self._far_reads if not read.is_done]
        if not late or self._ask is None:
            return True
        num_late = sum(self._needs[index].num_tokens for indices in late for index in indices)
        return self._ask.is_overdue(self._began_ns, self._num_far - num_late)

    def _begin_far_reads(self) -> dict[RecordKey, Record | None]:
        """Begins to read the records that only the shared tier has; returns their keys."""
        shared, ask = self._tiers.shared, self._ask
        if shared is None or ask is None or not (hints := ask.finds.hints):
            return {}
        places = self._tiers.indexes.places([self._keys[index] for index in self._cold])
        cold = zip(self._cold, places, strict=True)
        far = [index for index, place in cold if not place & PERSISTED and self._keys[index] in hints]
        wanted = [hints[self._keys[index]] for index in far]
        for part in calls_of(wanted):
            read = shared.read(wanted[part], ask.id, self._tiers.wake)
            if read is not None:  # or its records are missing at once
                self._far_reads.append((far[part], read))
        return dict.fromkeys(self._keys[index] for index in far)

    def _begin_reads(self, cold: Sequence[int]) -> bool:
        """Begins to read missing records. Returns False while the store is stuck and, after a late read, while another
        sequence tries it."""
        if self._tiers.store.writer is None:
            return True
        for at in range(0, len(cold), RECORDS_PER_READ):
            indices = cold[at : at + RECORDS_PER_READ]
            read = self._tiers.store.fetch([self._needs[index] for index in indices], self._tiers.wake, self)
            if read is None:
                return False
            self._reads.append((indices, read))
        return True

    def _take(self, pair: _Read) -> None:
        """Puts a read's records in their places."""
        (self._reads if pair in self._reads else self._far_reads).remove(pair)
        indices, read = pair
        found, store = read.answer, self._tiers.store
        if found is None:
            return
        if isinstance(found, SharedRead):
            self.shared.update((self._keys[index], one) for index, one in zip(indices, found.encoded, strict=True))
            found = found.records
        self._unread.difference_update(indices)
        if store.uploads_on_compute_thread:
            found = store.uploaded(found)
        for index, record in zip(indices, found, strict=True):
            self._found[index] = record

    def _is_as_promised(self, need: RecordNeed, record: Record | None) -> bool:
        if record is None or record.key != need.key or not need.groups <= record.groups.keys():
            return False
        start, end = record.position - len(record.key_ids), record.position
        is_usable = record.provenance is Provenance.PREFILL or not self._is_exact
        return is_usable and record.key_ids == self.resume.chain.key_ids(start, end)

    def _promote(self) -> None:
        """Keeps the records that were read in the hot tier, parents first, pinned like the others."""
        fresh = [
            record
            for index in self._cold
            if (record := self._found[index]) is not None and self._keys[index] not in self.missing
        ]
        self._tiers.hot.put(fresh)
        kept = self._tiers.hot.acquire([record.key for record in fresh], [None] * len(fresh))
        self._pinned += [record.key for record in kept if record is not None]

    def _by_tier(self, measure: Callable[[Record], int]) -> Mapping[str, int]:
        tiers, cold, found = self._tiers, set(self._cold), Counter[str]()
        for index, record in enumerate(self._found):
            if record is not None:
                tier = tiers.store.name if index in cold else tiers.hot.name
                found[SharedTier.name if record.key in self.shared else tier] += measure(record)
        return dict(+found)
