"""One prefix on its way from the tiers to a sequence: hot records at once, the others read and decoded by workers.

A record is used only if it is what its key says: the prompt's own ids, the position, all groups that are needed and, in
exact mode, computed on the grid. Keys of records that are not are in `missing`, and the lookup is repeated without
them: eviction and faults between lookup and fetch cost time, and never give a wrong state. A store that hangs costs one
read timeout: what has arrived by then is kept.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from application.services.prefix.store_tier import StoreRead
from application.services.prefix.tiers import PrefixTiers
from domain.ids import GroupIndex
from domain.prefix.hashing import BlockChain
from domain.prefix.index import PrefixMatch, ReuseRules
from domain.prefix.record import BlockKey, GroupPayloads, Provenance, Record, RecordKey

RECORDS_PER_READ = 4
"""Records of one read, which arrive together and are uploaded together: the first uploads begin after so many, and so
many are left to upload when the last was decoded. Each read has its own timeout."""

_Read: TypeAlias = tuple[Sequence[int], StoreRead[Sequence[Record | None]]]
"""Indices into the records, and the read that brings them."""


class PrefixFetch:
    """The records of one match. Compute thread only. It pins hot records until `close`.

    `position`: where the sequence resumes with them. `records`: its blocks from the start, then its snapshot if it has
    one; `missing`: the keys of those that could not be read; `gone`: those of them that the store does not have. All
    are final once `finish` returned.
    """

    def __init__(self, tiers: PrefixTiers, chain: BlockChain, match: PrefixMatch, rules: ReuseRules) -> None:
        self.position = match.position
        self.missing: frozenset[RecordKey] = frozenset()
        self.gone: frozenset[RecordKey] = frozenset()
        self._tiers = tiers
        self._chain = chain
        self._is_exact = rules.grid.is_exact
        self._keys = [need.key for need in match.needs]
        self._groups = [need.groups for need in match.needs]
        self._found = tiers.hot.acquire(self._keys, self._groups)
        self._pinned = [record.key for record in self._found if record is not None]
        self._cold = [index for index, record in enumerate(self._found) if record is None]
        self._reads: list[_Read] = []
        self._unread = set(self._cold)  # the store has not answered, or failed
        self._is_begun = self._begin_reads()

    @property
    def records(self) -> list[Record]:
        return [record for record in self._found if record is not None]

    @property
    def blocks(self) -> list[Record]:
        return [record for record in self.records if isinstance(record.key, BlockKey)]

    @property
    def block_states(self) -> list[GroupPayloads]:
        """The block states that `StateAccess.restore` takes."""
        pairs = zip(self.blocks, self._groups, strict=False)
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
    def tier_bytes(self) -> Mapping[str, int]:
        """Bytes by the tier that they come from."""
        return self._by_tier(lambda record: record.raw_bytes)

    @property
    def is_answered(self) -> bool:
        """True when the store has answered for all records that are not hot; False when it was or is stuck."""
        return self._is_begun and all(read.is_done for _, read in self._reads)

    def settle(self) -> bool:
        """Returns True when every read has arrived or timed out. Where this thread has to upload, it uploads one read a
        call, so that other sequences compute in between."""
        store = self._tiers.store
        if store.uploads_on_compute_thread:
            done = [pair for pair in self._reads if pair[1].is_done]
            if done:
                self._take(done[0])
            if len(done) > 1:
                self._tiers.wake()
                return False
        return not self._is_begun or self.is_answered or store.is_stuck

    def finish(self) -> bool:
        """Takes the reads that arrived, once settled. Returns False when `missing` names records that did not arrive in
        time."""
        for pair in list(self._reads):
            if pair[1].is_done:
                self._take(pair)
            else:
                pair[1].abandon()
        checked = zip(self._keys, self._groups, self._found, strict=True)
        self.missing = frozenset(
            key
            for key, groups, record in checked
            if record is None or record.key != key or not self._is_as_promised(record, groups)
        )
        self.gone = self.missing - {self._keys[index] for index in self._unread}
        self._promote()
        self._tiers.store.touch([key for key in self._keys if key not in self.missing])
        return not self.missing

    def close(self) -> None:
        """Abandons outstanding reads and unpins. Idempotent."""
        for _, read in self._reads:
            read.abandon()
        pinned, self._pinned = self._pinned, []
        self._tiers.hot.release(pinned)

    def _begin_reads(self) -> bool:
        """Begins to read missing records. Returns False while the store is stuck and, after a late read, while another
        sequence tries it."""
        if self._tiers.store.writer is None:
            return True
        for at in range(0, len(self._cold), RECORDS_PER_READ):
            indices = self._cold[at : at + RECORDS_PER_READ]
            keys, groups = [self._keys[index] for index in indices], [self._groups[index] for index in indices]
            read = self._tiers.store.fetch(keys, groups, self._tiers.wake, self)
            if read is None:
                return False
            self._reads.append((indices, read))
        return True

    def _take(self, pair: _Read) -> None:
        """Puts a read's records in their places."""
        self._reads.remove(pair)
        indices, read = pair
        found, store = read.answer, self._tiers.store
        if found is None:
            return
        self._unread.difference_update(indices)
        if store.uploads_on_compute_thread:
            found = store.uploaded(found)
        for index, record in zip(indices, found, strict=True):
            self._found[index] = record

    def _is_as_promised(self, record: Record, groups: frozenset[GroupIndex]) -> bool:
        end = record.position
        own_ids = self._chain.key_ids(end - len(record.key_ids), end)
        is_canonical = record.provenance is Provenance.PREFILL
        return groups <= record.groups.keys() and record.key_ids == own_ids and (is_canonical or not self._is_exact)

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
        cold, found = set(self._cold), Counter[str]()
        for index, record in enumerate(self._found):
            if record is not None:
                found[self._tiers.store.name if index in cold else self._tiers.hot.name] += measure(record)
        return dict(+found)
