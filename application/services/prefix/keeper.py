"""Where one sequence's records go: into memory and to the store, each what it lacks. Compute thread only.

A store that refused records is offered nothing more by this sequence: what follows them could not be stored without
them. Once the cache was cleared of the sequence's namespace nothing is kept any more.
"""

from collections.abc import Sequence
from copy import copy
from itertools import takewhile

from application.services.prefix.fetch import Fetched
from application.services.prefix.indexes import Epoch
from application.services.prefix.tiers import PrefixTiers
from domain.ids import NOBODY, RequestId
from domain.prefix.hashing import BlockChain
from domain.prefix.index import ANYWHERE, HOT, PERSISTED
from domain.prefix.match import PrefixMatch, ReuseRules
from domain.prefix.record import BlockKey, NamespaceInfo, Record, RecordKey, SnapshotKey


class RecordKeeper:
    """`id`: the request. `persist` False: what the sequence computes is kept in memory only."""

    def __init__(
        self,
        tiers: PrefixTiers,
        epoch: Epoch,
        info: NamespaceInfo,
        rules: ReuseRules,
        id: RequestId = NOBODY,
        *,
        persist: bool,
    ) -> None:
        self._tiers = tiers
        self._epoch = epoch
        self._info = info
        self._rules = rules
        self._id = id
        self._persist = persist
        self._writer = tiers.store.writer if tiers.store is not None and persist else None

    def fork(self, id: RequestId) -> "RecordKeeper":
        """For a sequence that goes on from the same position."""
        twin = copy(self)
        twin._id = id
        return twin

    @property
    def writes(self) -> bool:
        """Whether the store still takes what it is offered."""
        return self._writer is not None

    def has_block(self, chain: BlockChain, index: int) -> bool:
        """Whether it is in memory, whole, and in the store if that is written to."""
        key = BlockKey(chain.namespace, chain.hashes[index])
        (held,) = self._tiers.hot.held((key,))
        return held is not None and held >= self._rules.sliced_groups and not (self.writes and self._lacks(key))

    def has_snapshot(self, key: SnapshotKey) -> bool:
        """Whether it is in the store if that is written to, or else anywhere: what only memory has is taken again where
        it is passed, or it would never be stored."""
        return not self._lacks(key) if self.writes else self._is(key, ANYWHERE)

    def keep(self, records: Sequence[Record]) -> bool:
        """Keep freshly captured records, parents first. False when nothing may be kept any more."""
        with self._tiers.indexes.lasting(self._epoch) as may_keep:
            if may_keep:
                self._tiers.hot.put(records)
                self._offer([record for record in records if self._lacks(record.key)])
            return may_keep

    def keep_restored(self, match: PrefixMatch, fetched: Fetched) -> None:
        """Offer the store what memory has of a restored prefix, or nothing after it could be stored. The store once
        refused it, or it was computed for a request whose state must not be stored."""
        self._offer_known(match, fetched.blocks, fetched.position)

    def keep_taken_over(self, chain: BlockChain, match: PrefixMatch, position: int) -> int:
        """The same of the prefix of a state that was taken over, as far as memory has it. Returns up to which block all
        of it is kept somewhere by now."""
        keys = chain.prompt_keys()[: position // chain.block_size]
        is_stored = [self.writes and bool(places & PERSISTED) for places in self._tiers.indexes.places(keys)]
        if all(is_stored):  # as with most turns
            return len(keys)
        found = self._tiers.hot.acquire(keys, [self._rules.sliced_groups] * len(keys))
        leading = [record for record in takewhile(lambda record: record is not None, found) if record is not None]
        self._offer_known(match, leading, min(position, (len(leading) + 1) * chain.block_size - 1))
        self._tiers.hot.release([record.key for record in found if record is not None])
        return next((at for at in range(len(leading), len(keys)) if not is_stored[at]), len(keys))

    def discard(self, keys: Sequence[RecordKey]) -> None:
        """Let records go. Without `persist` what the sequence took itself is not stored, and what is stored stays."""
        if self._persist:
            self._tiers.discard(keys)
        else:
            self._tiers.hot.remove(keys)

    def _is(self, key: RecordKey, place: int) -> bool:
        return bool(self._tiers.indexes.places((key,))[0] & place)

    def _lacks(self, key: RecordKey) -> bool:
        """Whether the store has it neither now nor soon."""
        return not self._is(key, PERSISTED)

    def _offer(self, records: Sequence[Record]) -> None:
        if records and self._writer is not None and not self._writer.offer(self._info, records, self._id):
            self._writer = None

    def _offer_known(self, match: PrefixMatch, blocks: Sequence[Record], position: int) -> None:
        """`blocks`: from the prompt's start on, as far as `position`."""
        if not self.writes:
            return
        lacking, reach = list[Record](), position
        for record in blocks:
            if self._lacks(record.key):
                if frozenset(record.groups) != self._rules.sliced_groups:
                    reach = record.position - len(record.key_ids)
                    break
                lacking.append(record)
        snapshots = self._hot_snapshots(match, reach)
        with self._tiers.indexes.lasting(self._epoch) as may_keep:
            if may_keep:
                self._offer(sorted([*lacking, *snapshots], key=_parents_first))
        self._tiers.hot.release([record.key for record in snapshots])

    def _hot_snapshots(self, match: PrefixMatch, reach: int) -> list[Record]:
        """The prompt's snapshots that memory has and the store lacks, after blocks up to `reach`; to be released."""
        keys = [
            key
            for position, key in match.snapshots.items()
            if position - key.num_partial <= reach and self._is(key, HOT) and self._lacks(key)
        ]
        found = self._tiers.hot.acquire(keys, [self._rules.snapshot_groups(key.num_partial) for key in keys])
        return [record for record in found if record is not None]


def _parents_first(record: Record) -> tuple[int, bool]:
    return record.position, not isinstance(record.key, BlockKey)
