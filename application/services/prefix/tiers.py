"""Hot tier and store as one place to look prefixes up in, and to offer records to.


What the store has of a prompt is read by a worker; matching it with what is in memory is the compute thread's, without
any I/O.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile

from application.ports.block_store import EraseReport
from application.ports.record_reader import RecordReader
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.seen_blocks import SeenBlocks
from application.services.prefix.store_lanes import StoreLanes, StoreRead
from application.services.prefix.tenure import Tenures
from application.services.prefix.write_behind import WriteBehind
from domain.explanation import StopReason
from domain.hashing import BlockChain
from domain.ids import BlockHash
from domain.namespace_choice import NamespaceChoice
from domain.prefix import PrefixMatch, ReuseRules, find_prefix, furthest_position
from domain.record import BlockKey, Namespace, NamespaceInfo, Record, RecordKey, SnapshotKey
from domain.snapshot_place import by_position, snapshot_places


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where to resume, and what is where.

    By full block of the prompt: `is_hot` (in the hot tier, whole) and `is_stored` (in the store, or on its way there).
    `snapshots`: all usable ones, by position; `stored_snapshots`: the positions of those that are in the store, or on
    their way there.
    """

    match: PrefixMatch
    is_hot: tuple[bool, ...]
    is_stored: tuple[bool, ...]
    snapshots: dict[int, SnapshotKey]
    stored_snapshots: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """What the store has of a prompt, or has on its way: full blocks, and usable snapshots by position."""

    blocks: tuple[bool, ...] = ()
    snapshots: Mapping[int, SnapshotKey] = field(default_factory=dict[int, SnapshotKey])


NOTHING_STORED = StoredPrefix()


class PrefixTiers:
    """Any thread. `queue`: the way to the store; None when nothing is persisted."""

    def __init__(self, hot: HotTier, queue: WriteBehind | None, workers: StoreLanes) -> None:
        self.hot = hot
        self.queue = queue
        self.store: RecordReader | None = queue
        self.workers = workers
        self.seen = SeenBlocks()
        self.tenures = Tenures()

    @property
    def persists(self) -> bool:
        """Whether anything is written to a store."""
        return self.queue is not None

    @property
    def keeps_anything(self) -> bool:
        """Whether what is captured can be had at once: from the hot tier, or on its way to the store."""
        return bool(self.hot.budget_bytes) or self.queue is not None

    def stored_only(self) -> "PrefixTiers":
        """The same without what only RAM holds: what there would be after a restart."""
        tiers = PrefixTiers(HotTier(0), None, self.workers)
        tiers.store = self.queue.store if self.queue is not None else None
        return tiers

    def ask(
        self, prompt_ids: Sequence[int], chain: BlockChain, on_done: Callable[[], None]
    ) -> StoreRead[StoredPrefix] | None:
        """Let a worker read what the store has of the prompt. None when the store is stuck."""
        hashes = chain.hashes[: len(prompt_ids) // chain.block_size]
        work = partial(self.read_stored, prompt_ids, chain.namespace, hashes, chain.block_size)
        return self.workers.look_up(work, on_done)

    def read_stored(
        self, prompt_ids: Sequence[int], namespace: Namespace, hashes: Sequence[BlockHash], block_size: int
    ) -> StoredPrefix:
        """What the store has of a prompt whose full blocks have these hashes. Index reads; blocks for them."""
        if self.store is None:
            return NOTHING_STORED
        keys = [BlockKey(namespace, hash) for hash in hashes]
        blocks = tuple(found.is_readable for found in (self.store.lookup(keys) if keys else ()))
        # What waits to be stored may hang on a block that only the hot tier has.
        known = (here or groups is not None for here, groups in zip(blocks, self.hot.held(keys), strict=True))
        num_run = sum(1 for _ in takewhile(bool, known))
        places = snapshot_places(prompt_ids, namespace, hashes[:num_run], block_size)
        return StoredPrefix(blocks, by_position(self.store.find_snapshots(namespace, places), block_size))

    def match(
        self,
        prompt_ids: Sequence[int],
        chain: BlockChain,
        rules: ReuseRules,
        stored: StoredPrefix | None,
        absent: frozenset[RecordKey] = frozenset(),
    ) -> Lookup:
        """How far the prompt can be restored, leaving `absent` records out of account. No I/O.

        `stored` is None when the store has not answered: then what is hot counts as stored, or all of it would be
        offered to the store again.
        """
        keys = [BlockKey(chain.namespace, hash) for hash in chain.hashes[: len(prompt_ids) // rules.block_size]]
        held = self.hot.held(keys)
        has_hot = [groups is not None and key not in absent for key, groups in zip(keys, held, strict=True)]
        is_stored = has_hot
        if stored is not None:
            blocks = stored.blocks or (False,) * len(keys)
            is_stored = [flag and key not in absent for key, flag in zip(keys, blocks, strict=True)]
        known = [here or there for here, there in zip(has_hot, is_stored, strict=True)]
        snapshots = self._hot_snapshots(prompt_ids, chain, known)
        there = stored.snapshots if stored is not None else snapshots
        snapshots |= there
        snapshots = {position: key for position, key in snapshots.items() if key not in absent}
        evicted = [index for index, key in enumerate(keys) if not known[index] and key.hash in self.seen]
        match = find_prefix(len(prompt_ids), chain, known, snapshots, rules, evicted)
        if stored is None and match.position < furthest_position(len(prompt_ids), rules):
            match = replace(match, reason=StopReason.SLOW_STORE)
        is_hot = [
            here and groups is not None and groups >= rules.sliced_groups
            for here, groups in zip(has_hot, held, strict=True)
        ]
        return Lookup(match, tuple(is_hot), tuple(is_stored), snapshots, frozenset(there))

    def clear(self, choice: NamespaceChoice, known: Iterable[NamespaceInfo]) -> tuple[int, EraseReport]:
        """Remove everything of these namespaces, for good: from memory, the queue and the store. Returns how many
        records memory had, and what the store says. `known`: namespaces that may be in memory; what is there of others
        goes as well. Blocks: not for the compute thread.

        What runs and was begun before leaves nothing behind from then on.
        """
        self.tenures.end(choice.includes)
        stored = [usage.info for usage in self.queue.store.usage().namespaces] if self.queue is not None else []
        num_hot = self.hot.forget({info.namespace for info in (*known, *stored) if not choice.includes(info)})
        if choice.is_everything:
            self.seen.clear()
        if self.queue is None:
            return num_hot, EraseReport(0, 0)
        return num_hot, self.queue.erase(None if choice.is_everything else choice.includes)

    def keep(self, records: Sequence[Record]) -> None:
        """Put records into the hot tier."""
        self.hot.put(records)
        self.seen.note(record.key.hash for record in records if isinstance(record.key, BlockKey))

    def store_behind(self, info: NamespaceInfo, records: Sequence[Record]) -> bool:
        """Hand records on for storing. False when they will not be stored, nor anything that hangs on them."""
        if self.queue is None:
            return False
        return not records or self.queue.offer(info, records)

    def discard(self, keys: Sequence[RecordKey]) -> None:
        """Let records go, with all that hangs on them in the store; a worker does that."""
        self.hot.remove(keys)
        if self.queue is not None and keys:
            self.workers.keep_up(partial(self.queue.delete, keys))

    def touch(self, keys: Sequence[RecordKey]) -> None:
        """Note a use in the store, from a worker. The hot tier notes its own."""
        if self.store is not None and keys:
            self.workers.keep_up(partial(self.store.touch, keys))

    def _hot_snapshots(
        self, prompt_ids: Sequence[int], chain: BlockChain, known: Sequence[bool]
    ) -> dict[int, SnapshotKey]:
        num_run = sum(1 for _ in takewhile(bool, known))
        places = snapshot_places(prompt_ids, chain.namespace, chain.hashes[:num_run], chain.block_size)
        return by_position(self.hot.find_snapshots(chain.namespace, places), chain.block_size)


__all__ = ("NOTHING_STORED", "Lookup", "PrefixTiers", "StoredPrefix")
