"""One prefix on its way from the tiers to a sequence: what is hot at once, the rest read and decoded by workers.

A record is used only if it is what its key says: the prompt's own tokens, the position, all groups that are needed
(and, in exact mode, computed on the grid). Whatever is not is named in `missing`, and the lookup is repeated without
it: eviction and faults between lookup and fetch cost time, never a wrong state. A store that hangs costs a deadline,
counted anew for each read of a few records: then what has arrived is kept, and nobody waits for the rest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from application.services.prefix.store_lanes import StoreRead
from application.services.prefix.tiers import Lookup, PrefixTiers
from domain.ids import GroupIndex
from domain.payload import GroupPayloads
from domain.prefix import ReuseRules
from domain.record import BlockKey, Provenance, Record, RecordKey

RECORDS_PER_READ = 8
"""Records one worker reads and decodes in a row; a long prefix is spread over all workers."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What `LoadedModel.restore` takes, and where it came from. Tokens by tier add up to `position`.

    `is_canonical`: all of it was computed on the grid.
    """

    position: int
    blocks: tuple[GroupPayloads, ...]
    snapshot: GroupPayloads
    num_hot: int
    num_store: int
    size_bytes: int
    is_canonical: bool


class PrefixFetch:
    """Created, polled and finished on one thread. Pins in the hot tier are held until `close`."""

    def __init__(
        self,
        tiers: PrefixTiers,
        lookup: Lookup,
        prompt_ids: Sequence[int],
        rules: ReuseRules,
        on_progress: Callable[[], None],
    ) -> None:
        """Starts at once. `on_progress` is called from workers whenever something arrived."""
        self._tiers = tiers
        self._prompt_ids = prompt_ids
        self._rules = rules
        match = lookup.match
        self._position = match.position
        self._keys: list[RecordKey] = [need.key for need in match.blocks]
        self._groups: list[frozenset[GroupIndex]] = [need.groups for need in match.blocks]
        if match.snapshot is not None:
            self._keys.append(match.snapshot)
            self._groups.append(rules.snapshot_groups(match.snapshot.num_partial))
        self._records = tiers.hot.acquire(self._keys, self._groups)
        self._pinned = [key for key, record in zip(self._keys, self._records, strict=True) if record is not None]
        self._cold = [index for index, record in enumerate(self._records) if record is None]
        self._reads = [self._read(at, on_progress) for at in range(0, len(self._cold), RECORDS_PER_READ)]
        self.missing: frozenset[RecordKey] = frozenset()

    @property
    def is_done(self) -> bool:
        return all(read is None or read.is_done for read in self._reads)

    @property
    def is_answered(self) -> bool:
        """Whether the store has answered for all that is not hot; False when it was stuck, or is."""
        return all(read is not None and read.is_done for read in self._reads)

    @property
    def is_hopeless(self) -> bool:
        """It has taken too long, and may take for ever."""
        return not self.is_done and self._tiers.workers.is_stuck

    def finish(self) -> Fetched | None:
        """Once `is_done` or `is_hopeless`: the state, or None when `missing` names what could not be had (in time)."""
        for number, read in enumerate(self._reads):
            found = (read.answer if read is not None and read.is_done else None) or ()
            for order, record in enumerate(found):
                self._records[self._cold[number * RECORDS_PER_READ + order]] = record
        checked = zip(self._keys, self._groups, self._records, strict=True)
        self.missing = frozenset(
            key
            for key, groups, record in checked
            if record is None or record.key != key or not self._is_as_promised(record, groups)
        )
        self._promote()
        self._tiers.touch([key for key in self._keys if key not in self.missing])
        return None if self.missing else self._fetched()

    def record_at(self, index: int) -> Record | None:
        """Block `index`, once finished; for offering it to the store again."""
        return self._records[index]

    def close(self) -> None:
        """Give up the pins, finished or not, and what is still to be read. Repeating it does nothing."""
        for read in self._reads:
            if read is not None:
                read.abandon()
        pinned, self._pinned = self._pinned, []
        self._tiers.hot.release(pinned)

    def _read(self, at: int, on_progress: Callable[[], None]) -> StoreRead[Sequence[Record | None]] | None:
        """None when there is no store, or none that answers."""
        if self._tiers.store is None:
            return None
        indices = self._cold[at : at + RECORDS_PER_READ]
        keys = [self._keys[index] for index in indices]
        groups = [self._groups[index] for index in indices]
        return self._tiers.workers.read(partial(self._tiers.store.get, keys, groups), on_progress)

    def _is_as_promised(self, record: Record, groups: frozenset[GroupIndex]) -> bool:
        end = record.position
        own_tokens = tuple(self._prompt_ids[end - len(record.token_ids) : end])
        return (
            groups <= record.groups.keys()
            and record.token_ids == own_tokens
            and (record.provenance is Provenance.PREFILL or not self._rules.is_exact)
        )

    def _promote(self) -> None:
        """Keep in the hot tier what was read from the store, parents first, and pinned like the rest."""
        cold = [(self._keys[index], self._records[index]) for index in self._cold]
        fresh = [record for key, record in cold if record is not None and key not in self.missing]
        self._tiers.hot.put(fresh)
        kept = self._tiers.hot.acquire([record.key for record in fresh], [None] * len(fresh))
        self._pinned += [record.key for record in kept if record is not None]
        self._tiers.seen.note(record.key.hash for record in fresh if isinstance(record.key, BlockKey))

    def _fetched(self) -> Fetched:
        records = [record for record in self._records if record is not None]
        blocks = [record for record in records if isinstance(record.key, BlockKey)]
        snapshot = next((record for record in records if not isinstance(record.key, BlockKey)), None)
        num_store = sum(len(records[index].token_ids) for index in self._cold)
        groups = [
            {index: record.groups[index] for index in wanted}
            for record, wanted in zip(blocks, self._groups, strict=False)
        ]
        return Fetched(
            self._position,
            tuple(groups),
            snapshot.groups if snapshot is not None else {},
            self._position - num_store,
            num_store,
            sum(payload.size_bytes for record in records for payload in record.groups.values()),
            all(record.provenance is Provenance.PREFILL for record in records),
        )


__all__ = ("RECORDS_PER_READ", "Fetched", "PrefixFetch")
