"""Where one sequence's records go: into memory, and into every store that it writes to, each what it lacks.

A store that refused records is offered nothing more by this sequence: what follows them could not be stored without
them. Once the cache was cleared of the sequence's namespace nothing is kept any more. Compute thread only.
"""

from collections.abc import Sequence
from copy import copy
from itertools import takewhile

from application.services.prefix.fetch import Fetched
from application.services.prefix.tenure import Tenure
from application.services.prefix.tiers import HOT, PrefixTiers
from application.services.prefix.write_behind import WriteBehind
from domain.hashing import BlockChain
from domain.holdings import Found, Holdings
from domain.ids import NOBODY, RequestId
from domain.prefix import ReuseRules
from domain.record import BlockKey, NamespaceInfo, Record, RecordKey


class RecordKeeper:
    """`found`: what the tiers hold already, and need not be given again. `id`: the request. `persist` False: what the
    sequence computes is kept in memory only."""

    def __init__(
        self,
        tiers: PrefixTiers,
        info: NamespaceInfo,
        tenure: Tenure,
        found: Found,
        id: RequestId = NOBODY,
        *,
        persist: bool,
    ) -> None:
        self._tiers = tiers
        self._info = info
        self._id = id
        self._tenure = tenure
        self._holdings = found.holdings
        self._persist = persist
        self._writers: dict[str, WriteBehind] = {}
        if persist:
            self._writers = {tier.name: tier.writer for tier in tiers.stored if tier.writer is not None}

    def fork(self, id: RequestId) -> "RecordKeeper":
        """For a sequence that goes on from the same position."""
        twin = copy(self)
        twin._id = id
        twin._writers = dict(self._writers)
        return twin

    @property
    def writes(self) -> bool:
        """Whether some store still takes what it is offered."""
        return bool(self._writers)

    def has_block(self, index: int) -> bool:
        """Whether it is in memory, whole, and in every store that is written to."""
        return self._held(HOT).has_whole(index) and all(self._held(name).has(index) for name in self._writers)

    def has_snapshot(self, position: int) -> bool:
        """Whether it is in every store that is written to, or, when there is none, anywhere.

        What only memory has is taken again where it is passed, or it would never be stored.
        """
        held = [self._held(name) for name in self._writers]
        if held:
            return all(position in one.snapshots for one in held)
        return any(position in one.snapshots for one in self._holdings.values())

    def keep(self, records: Sequence[Record], block_size: int) -> bool:
        """Keep freshly captured records, parents first. False when nothing may be kept any more."""
        with self._tenure.held() as may_keep:
            if may_keep:
                self._tiers.keep(records)
                for name in tuple(self._writers):
                    held = self._held(name)
                    self._offer(name, [record for record in records if not _is_block_of(record, held, block_size)])
            return may_keep

    def keep_restored(self, chain: BlockChain, rules: ReuseRules, fetched: Fetched) -> None:
        """Offer every store what other tiers have of a restored prefix, or nothing after it could be stored there. The
        store once refused it, or it was computed for a request whose state must not be stored."""
        self._offer_known(chain, rules, fetched.blocks, fetched.position)

    def keep_taken_over(self, chain: BlockChain, rules: ReuseRules, position: int) -> int:
        """The same of the prefix of a state that was taken over, as far as memory has it. Returns up to which block all
        of it is kept somewhere by now."""
        keys = chain.prompt_keys()[: position // chain.block_size]
        writers = [self._held(name) for name in self._writers]
        if writers and all(held.num_leading(len(keys)) == len(keys) for held in writers):  # as with most turns
            return len(keys)
        stored = [all(held.has(index) for held in writers) for index in range(len(keys))]
        found = self._tiers.hot.acquire(keys, [rules.sliced_groups] * len(keys))
        leading = [record for record in takewhile(lambda record: record is not None, found) if record is not None]
        self._offer_known(chain, rules, leading, min(position, (len(leading) + 1) * chain.block_size - 1))
        self._tiers.hot.release([record.key for record in found if record is not None])
        return next((at for at in range(len(leading), len(keys)) if not (self._writers and stored[at])), len(keys))

    def _offer_known(self, chain: BlockChain, rules: ReuseRules, blocks: Sequence[Record], position: int) -> None:
        """`blocks`: from the prompt's start on, as far as `position`."""
        for name in tuple(self._writers):
            held = self._held(name)
            lacking, reach = list[Record](), position
            for index, record in enumerate(blocks):
                if not held.has(index):
                    if frozenset(record.groups) != rules.sliced_groups:
                        reach = index * chain.block_size
                        break
                    lacking.append(record)
            snapshots = self._hot_snapshots(rules, held, reach)
            with self._tenure.held() as may_keep:
                if may_keep:
                    self._offer(name, sorted([*lacking, *snapshots], key=_parents_first))
            self._tiers.hot.release([record.key for record in snapshots])

    def discard(self, keys: Sequence[RecordKey]) -> None:
        """Let records go. Without `persist` what the sequence took itself is not stored, and what is stored stays."""
        if self._persist:
            self._tiers.discard(keys)
        else:
            self._tiers.hot.remove(keys)

    def _held(self, name: str) -> Holdings:
        return self._holdings.get(name, Holdings())

    def _offer(self, name: str, records: Sequence[Record]) -> None:
        if records and not self._writers[name].offer(self._info, records, self._id):
            del self._writers[name]

    def _hot_snapshots(self, rules: ReuseRules, held: Holdings, reach: int) -> list[Record]:
        """The prompt's snapshots that memory has and a store lacks, after blocks up to `reach`; to be released."""
        keys = [
            key
            for position, key in self._held(HOT).snapshots.items()
            if position not in held.snapshots and position - key.num_partial <= reach
        ]
        found = self._tiers.hot.acquire(keys, [rules.snapshot_groups(key.num_partial) for key in keys])
        return [record for record in found if record is not None]


def _is_block_of(record: Record, held: Holdings, block_size: int) -> bool:
    return isinstance(record.key, BlockKey) and held.has(record.position // block_size - 1)


def _parents_first(record: Record) -> tuple[int, bool]:
    return record.position, not isinstance(record.key, BlockKey)


__all__ = ("RecordKeeper",)
