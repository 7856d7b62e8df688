"""One prefix on its way from the tiers to a sequence: what is in memory at once, the rest read and decoded by workers.

A record is used only if it is what its key says: the prompt's own ids, the position, all groups that are needed (and,
in exact mode, computed on the grid). Whatever is not is named in `missing`, and the lookup is repeated without it:
eviction and faults between lookup and fetch cost time, never a wrong state. A store that hangs costs a deadline,
counted anew for each read of a few records: then what has arrived is kept, and nobody waits for the rest.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from application.services.prefix.tiers import HOT, PrefixTiers, StateRead
from domain.ids import GroupIndex
from domain.prefix.hashing import BlockChain
from domain.prefix.match import PrefixMatch, ReuseRules
from domain.prefix.payload import GroupPayloads
from domain.prefix.record import BlockKey, Provenance, Record, RecordKey

RECORDS_PER_READ = 8
"""Records of one read: the store decodes as many at a time as it has threads, and each read has its own deadline."""


@dataclass(slots=True)
class _Read:
    """A few records of the store. `answer`: None while it is not begun: a store that was late is tried by one read at a
    time. `is_taken`: what it brought is in place, and not kept as it was read."""

    indices: Sequence[int]
    answer: StateRead | None = None
    is_taken: bool = False

    @property
    def is_answered(self) -> bool:
        return self.is_taken or (self.answer is not None and self.answer.is_done)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A prefix in memory. `records`: its blocks from the start, then its snapshot if it has one; `groups`: of each what
    is needed. `reused`: tokens by tier, `position` in all; `tier_bytes`: of the records. `pinned`: to be released in
    the hot tier."""

    position: int
    records: tuple[Record, ...]
    groups: tuple[frozenset[GroupIndex], ...]
    reused: Mapping[str, int]
    tier_bytes: Mapping[str, int]
    pinned: tuple[RecordKey, ...]

    @property
    def blocks(self) -> list[Record]:
        return [record for record in self.records if isinstance(record.key, BlockKey)]

    @property
    def block_states(self) -> list[GroupPayloads]:
        """What `StateAccess.restore` takes of the blocks."""
        pairs = zip(self.blocks, self.groups, strict=False)
        return [{group: record.groups[group] for group in wanted} for record, wanted in pairs]

    @property
    def snapshot_state(self) -> GroupPayloads:
        last = self.records[-1]
        return {} if isinstance(last.key, BlockKey) else last.groups

    @property
    def size_bytes(self) -> int:
        return sum(record.raw_bytes for record in self.records)

    @property
    def loose_bytes(self) -> int:
        """Of these, what is not in the hot tier."""
        kept = set(self.pinned)
        return sum(record.raw_bytes for record in self.records if record.key not in kept)

    @property
    def is_canonical(self) -> bool:
        """Whether all of it was computed on the grid."""
        return all(record.provenance is Provenance.PREFILL for record in self.records)


class PrefixFetch:
    """Created, polled and finished on one thread. Pins records in the hot tier until they are released: by `close`, or
    by who got them from `finish`."""

    def __init__(
        self,
        tiers: PrefixTiers,
        chain: BlockChain,
        match: PrefixMatch,
        rules: ReuseRules,
        on_progress: Callable[[], None],
    ) -> None:
        """`on_progress` is called from workers whenever something arrived."""
        self._tiers = tiers
        self._chain = chain
        self._is_exact = rules.grid.is_exact
        self._position = match.position
        self._keys: list[RecordKey] = [need.key for need in match.blocks]
        self._groups = [need.groups for need in match.blocks]
        if match.snapshot is not None:
            self._keys.append(match.snapshot)
            self._groups.append(rules.snapshot_groups(match.snapshot.num_partial))
        self._records = tiers.hot.acquire(self._keys, self._groups)
        self._pinned = [record.key for record in self._records if record is not None]
        self._sources = [HOT if record is not None else "" for record in self._records]
        self._on_progress = on_progress
        self._reads = self._plan_reads()
        self.missing: frozenset[RecordKey] = frozenset()

    def settle(self) -> bool:
        """Begin what could not be begun before; True when everything has arrived, or will not in time. Lands what one
        read brought, where this thread has to: others compute in between."""
        store = self._tiers.store
        if store is None or not self._reads:
            return True
        is_stuck = store.lanes.is_stuck
        for read in self._reads:
            if read.answer is None and not read.is_taken and not is_stuck:
                keys, groups = [self._keys[at] for at in read.indices], [self._groups[at] for at in read.indices]
                read.answer = store.fetch(keys, groups, self._on_progress)
                if read.answer is None:
                    break
        due = [read for read in self._reads if read.is_answered and not read.is_taken]
        if due and store.lands_on_compute_thread:
            self._take(due[0])
            if len(due) > 1:
                self._on_progress()
                return False
        # Otherwise another sequence's read tries the store.
        has_begun = any(read.is_taken or read.answer is not None for read in self._reads)
        return is_stuck or not has_begun or all(read.is_answered for read in self._reads)

    @property
    def is_answered(self) -> bool:
        """Whether the stores have answered for all that is not hot; False when one was stuck, or is."""
        return all(read.is_answered for read in self._reads)

    def finish(self) -> Fetched | None:
        """Once settled: the prefix, or None when `missing` names what could not be had (in time)."""
        for read in self._reads:
            self._take(read)
        checked = zip(self._keys, self._groups, self._records, strict=True)
        self.missing = frozenset(
            key
            for key, groups, record in checked
            if record is None or record.key != key or not self._is_as_promised(record, groups)
        )
        self._promote()
        self._tiers.touch([key for key in self._keys if key not in self.missing])
        if self.missing:
            return None
        pinned, self._pinned = tuple(self._pinned), []
        records = tuple(record for record in self._records if record is not None)
        reused, tier_bytes = Counter[str](), Counter[str]()
        for record, source in zip(records, self._sources, strict=True):
            reused[source] += len(record.key_ids)
            tier_bytes[source] += record.raw_bytes
        return Fetched(self._position, records, tuple(self._groups), dict(+reused), dict(+tier_bytes), pinned)

    def close(self) -> None:
        """Give up what is still to be read, and the pins. Repeating it does nothing."""
        for read in self._reads:
            if read.answer is not None:
                read.answer.abandon()
        pinned, self._pinned = self._pinned, []
        self._tiers.hot.release(pinned)

    def _plan_reads(self) -> list[_Read]:
        cold = [index for index, record in enumerate(self._records) if record is None]
        if self._tiers.store is None:
            return []
        for index in cold:
            self._sources[index] = self._tiers.store.name
        return [_Read(cold[at : at + RECORDS_PER_READ]) for at in range(0, len(cold), RECORDS_PER_READ)]

    def _take(self, read: _Read) -> None:
        """Put a read's records in their places."""
        answer, store = read.answer, self._tiers.store
        if answer is None or store is None:
            return
        if not answer.is_done:
            answer.abandon()
            return
        read.is_taken, read.answer = True, None
        found = answer.answer or ()
        if store.lands_on_compute_thread:
            found = store.landed(found)
        for index, record in zip(read.indices, found, strict=False):
            self._records[index] = record

    def _is_as_promised(self, record: Record, groups: frozenset[GroupIndex]) -> bool:
        end = record.position
        own_ids = self._chain.key_ids(end - len(record.key_ids), end)
        is_canonical = record.provenance is Provenance.PREFILL
        return groups <= record.groups.keys() and record.key_ids == own_ids and (is_canonical or not self._is_exact)

    def _promote(self) -> None:
        """Keep in the hot tier what was read, parents first, and pinned like the rest."""
        cold = {index for read in self._reads for index in read.indices}
        fresh = [
            record
            for index, record in enumerate(self._records)
            if record is not None and index in cold and self._keys[index] not in self.missing
        ]
        self._tiers.hot.put(fresh)
        kept = self._tiers.hot.acquire([record.key for record in fresh], [None] * len(fresh))
        self._pinned += [record.key for record in kept if record is not None]
