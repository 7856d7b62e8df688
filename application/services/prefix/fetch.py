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
from application.ports.state_access import StateAccess
from application.services.lane import Call
from application.services.memory_leases import Lease, Purpose, Refused
from application.services.prefix.record_source import Arrived, RecordSource
from application.services.prefix.resume import Resume
from application.services.prefix.shared.tier import SharedAsk
from application.services.prefix.tiers import PrefixTiers
from domain.ids import RequestId, SequenceId
from domain.memory.shape import MemoryShape
from domain.prefix.index import PERSISTED, RecordNeed, ReuseRules
from domain.prefix.record import BlockKey, Provenance, Record, RecordKey

_Read: TypeAlias = tuple[RecordSource, Sequence[int], Call[Arrived] | None]
"""A source, indices into the records, and the read that brings them; None: it was refused."""


def begin_fetch(
    tiers: PrefixTiers, resume: Resume, purpose: Purpose, rules: ReuseRules, shape: MemoryShape, ask: SharedAsk | None
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
        self, tiers: PrefixTiers, resume: Resume, lease: Lease, rules: ReuseRules, ask: SharedAsk | None
    ) -> None:
        """`lease`: of the memory for what is not hot. `ask`: what the shared tier has of the prompt."""
        match = resume.match
        self.resume, self.lease = resume, lease
        self.position = match.position
        self.missing: frozenset[RecordKey] = frozenset()
        self.gone: frozenset[RecordKey] = frozenset()
        self.shared: dict[RecordKey, Record | None] = {}
        self._tiers = tiers
        self._is_exact = rules.grid.is_exact
        self._needs = match.needs
        self._keys = [need.key for need in match.needs]
        self._found = tiers.hot.acquire(self._keys, [need.groups for need in match.needs])
        self._pinned = [record.key for record in self._found if record is not None]
        cold = [index for index, record in enumerate(self._found) if record is None]
        self._unread = set(cold)  # no source has answered, or it failed
        self._sources: dict[int, RecordSource] = dict.fromkeys(cold, tiers.store)
        if ask is not None and ask.finds.hints:
            for index, place in zip(cold, tiers.indexes.places([self._keys[index] for index in cold]), strict=True):
                if not place & PERSISTED and self._keys[index] in ask.finds.hints:
                    self._sources[index], self.shared[self._keys[index]] = ask, None
        self._began_ns = tiers.clock.now_ns()
        self._reads: list[_Read] = []
        self._num_tokens = Counter[str]()
        for source in (tiers.store,) if ask is None else (ask, tiers.store):
            own = [index for index in cold if self._sources[index] is source]
            reads = source.begin_reads([self._needs[index] for index in own], tiers.wake, self)
            self._reads += [(source, own[part], read) for part, read in reads]
            self._num_tokens[source.name] = self._num_in(own)

    @property
    def records(self) -> list[Record]:
        return [record for record in self._found if record is not None]

    @property
    def blocks(self) -> list[Record]:
        return [record for record in self.records if isinstance(record.key, BlockKey)]

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
        own = [read for source, _, read in self._reads if source is self._tiers.store]
        return all(read is not None and read.is_done for read in own)

    def settle(self) -> bool:
        """Returns True when every read has arrived or is not waited for any longer. Where this thread has to upload, it
        uploads one read a call, so that other sequences compute in between."""
        if self._tiers.store.uploads_on_compute_thread:
            done = [one for one in self._reads if one[2] is not None and one[2].is_done]
            if done:
                self._take(done[0])
            if len(done) > 1:
                self._tiers.wake()
                return False
        for source, late in self._late():
            if not source.is_overdue(self._began_ns, self._num_tokens[source.name] - self._num_in(late)):
                return False
        return True

    def finish(self) -> bool:
        """Takes the reads that arrived, once settled. Returns False when `missing` names records that did not arrive in
        time."""
        for source, indices in self._late():
            source.note_late(self._began_ns, len(indices))
        for one in list(self._reads):
            if one[2] is not None and one[2].is_done:
                self._take(one)
            elif one[2] is not None:
                one[2].abandon()
        pairs = zip(self._needs, self._found, strict=True)
        self.missing = frozenset(need.key for need, record in pairs if not self._is_as_promised(need, record))
        self.gone = self.missing - self.shared.keys() - {self._keys[index] for index in self._unread}
        self._promote()
        self._tiers.store.touch([key for key in self._keys if key not in self.missing])
        kept = set(self._pinned)  # in the hot tier
        self.lease.resize(sum(record.raw_bytes for record in self.records if record.key not in kept))
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
        for _, _, read in self._reads:
            if read is not None:
                read.abandon()
        pinned, self._pinned = self._pinned, []
        self._tiers.hot.release(pinned)

    def _late(self) -> list[tuple[RecordSource, list[int]]]:
        """Returns the sources whose reads have not all arrived, with the records that have not."""
        late: dict[RecordSource, list[int]] = {}
        for source, indices, read in self._reads:
            if read is not None and not read.is_done:
                late.setdefault(source, []).extend(indices)
        return list(late.items())

    def _num_in(self, indices: Sequence[int]) -> int:
        return sum(self._needs[index].num_tokens for index in indices)

    def _take(self, one: _Read) -> None:
        """Puts a read's records in their places."""
        self._reads.remove(one)
        _, indices, read = one
        if read is None or (answer := read.answer) is None:
            return
        (found, encoded), store = answer, self._tiers.store
        self.shared.update((self._keys[index], record) for index, record in zip(indices, encoded, strict=False))
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
            for index in self._sources
            if (record := self._found[index]) is not None and self._keys[index] not in self.missing
        ]
        self._tiers.hot.put(fresh)
        kept = self._tiers.hot.acquire([record.key for record in fresh], [None] * len(fresh))
        self._pinned += [record.key for record in kept if record is not None]

    def _by_tier(self, measure: Callable[[Record], int]) -> Mapping[str, int]:
        found = Counter[str]()
        for index, record in enumerate(self._found):
            if record is not None:
                tier = self._sources[index].name if index in self._sources else self._tiers.hot.name
                found[tier] += measure(record)
        return dict(+found)
