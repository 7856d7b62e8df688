"""Hot tier and store as one place to look prefixes up in, and to offer records to. Looking up is index reads only."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from application.ports.block_store import BlockStore, EraseReport, Presence
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.seen_blocks import SeenBlocks
from application.services.prefix.tenure import Tenures
from domain.hashing import BlockChain
from domain.namespace_choice import NamespaceChoice
from domain.prefix import PrefixMatch, ReuseRules, find_prefix, match_snapshots
from domain.record import BlockKey, NamespaceInfo, Record, RecordKey, SnapshotKey

T = TypeVar("T")


class RecordWriter(Protocol):
    """What stands in front of the store: takes records for storing, from any thread, without blocking."""

    @property
    def store(self) -> BlockStore:
        """Where they are stored: what a restart would find, without what still waits."""
        ...

    def offer(self, info: NamespaceInfo, records: Sequence[Record]) -> bool:
        """Queue records of one namespace, parents first, or refuse them all: then nothing that hangs on them should be
        offered either."""
        ...


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


class PrefixTiers:
    """Any thread. `store`: with what the writer has taken and not stored yet. `store` and `writer` are both None when
    nothing is persisted."""

    def __init__(self, hot: HotTier, store: BlockStore | None, writer: RecordWriter | None, workers: Executor) -> None:
        self.hot = hot
        self.store = store
        self.seen = SeenBlocks()
        self.tenures = Tenures()
        self._writer = writer
        self._workers = workers

    @property
    def persists(self) -> bool:
        """Whether anything is written to a store."""
        return self._writer is not None

    @property
    def keeps_anything(self) -> bool:
        """Whether what is captured can be had at once: from the hot tier, or on its way to the store."""
        return bool(self.hot.budget_bytes) or self._writer is not None

    def stored_only(self) -> "PrefixTiers":
        """The same without what only RAM holds: what there would be after a restart."""
        store = self._writer.store if self._writer is not None else self.store
        return PrefixTiers(HotTier(0), store, None, self._workers)

    def look_up(
        self,
        prompt_ids: Sequence[int],
        chain: BlockChain,
        rules: ReuseRules,
        absent: frozenset[RecordKey] = frozenset(),
    ) -> Lookup:
        """How far the prompt can be restored, leaving `absent` records out of account."""
        keys = [BlockKey(chain.namespace, hash) for hash in chain.hashes[: len(prompt_ids) // rules.block_size]]
        held = self.hot.held(keys)
        stored = self.store.lookup(keys) if self.store is not None and keys else [Presence.MISS] * len(keys)
        known = tuple(
            key not in absent and (groups is not None or presence.is_readable)
            for key, groups, presence in zip(keys, held, stored, strict=True)
        )
        hot, there = self._snapshots(prompt_ids, chain, rules, known)
        snapshots = {position: key for position, key in (hot | there).items() if key not in absent}
        evicted = [index for index, key in enumerate(keys) if not known[index] and key.hash in self.seen]
        match = find_prefix(len(prompt_ids), chain, known, snapshots, rules, evicted)
        is_hot = [groups is not None and groups >= rules.sliced_groups for groups in held]
        is_stored = [presence.is_readable for presence in stored]
        if absent:
            is_hot = [flag and key not in absent for key, flag in zip(keys, is_hot, strict=True)]
            is_stored = [flag and key not in absent for key, flag in zip(keys, is_stored, strict=True)]
        return Lookup(match, tuple(is_hot), tuple(is_stored), snapshots, frozenset(there))

    def clear(self, choice: NamespaceChoice, known: Iterable[NamespaceInfo]) -> tuple[int, EraseReport]:
        """Remove everything of these namespaces, for good: from memory, the queue and the store. Returns how many
        records memory had, and what the store says. `known`: namespaces that may be in memory; what is there of others
        goes as well. Blocks: not for the compute thread.

        What runs and was begun before leaves nothing behind from then on.
        """
        self.tenures.end(choice.includes)
        stored = [usage.info for usage in self.store.usage().namespaces] if self.store is not None else []
        num_hot = self.hot.forget({info.namespace for info in (*known, *stored) if not choice.includes(info)})
        if choice.is_everything:
            self.seen.clear()
        if self.store is None:
            return num_hot, EraseReport(0, 0)
        return num_hot, self.store.erase(None if choice.is_everything else choice.includes)

    def keep(self, records: Sequence[Record]) -> None:
        """Put records into the hot tier."""
        self.hot.put(records)
        self.seen.note(record.key.hash for record in records if isinstance(record.key, BlockKey))

    def store_behind(self, info: NamespaceInfo, records: Sequence[Record]) -> bool:
        """Hand records on for storing. False when they will not be stored, nor anything that hangs on them."""
        if self._writer is None:
            return False
        return not records or self._writer.offer(info, records)

    def discard(self, keys: Sequence[RecordKey]) -> None:
        """Let records go, with all that hangs on them in the store; a worker does that."""
        self.hot.remove(keys)
        if self.store is not None and keys:
            self.in_worker(self.store.delete, keys)

    def touch(self, keys: Sequence[RecordKey]) -> None:
        """Note a use in the store, from a worker. The hot tier notes its own."""
        if self.store is not None and keys:
            self.in_worker(self.store.touch, keys)

    def in_worker(self, work: Callable[..., T], *arguments: object) -> "Future[T]":
        """Run blocking work off the calling thread. After shutdown the future holds an error instead."""
        try:
            return self._workers.submit(work, *arguments)
        except RuntimeError as error:
            refused: Future[T] = Future()
            refused.set_exception(error)
            return refused

    def _snapshots(
        self, prompt_ids: Sequence[int], chain: BlockChain, rules: ReuseRules, known: Sequence[bool]
    ) -> tuple[dict[int, SnapshotKey], dict[int, SnapshotKey]]:
        """Usable snapshots, hot ones and stored ones. Without recurrent layers only those in the last block that can be
        resumed in matter."""
        num_run = next((index for index, is_known in enumerate(known) if not is_known), len(known))
        first = 0 if rules.needs_snapshots else min(num_run, (len(prompt_ids) - 1) // rules.block_size)
        parents = [chain.parent(index) for index in range(first, num_run + 1)]
        hot = self.hot.snapshots(chain.namespace, parents)
        stored: Sequence[Sequence[SnapshotKey]] = [()] * len(parents)
        if self.store is not None:
            stored = self.store.snapshots(chain.namespace, parents)
        before: list[Sequence[SnapshotKey]] = [() for _ in range(first)]
        return match_snapshots(prompt_ids, chain, [*before, *hot]), match_snapshots(
            prompt_ids, chain, [*before, *stored]
        )


__all__ = ("Lookup", "PrefixTiers", "RecordWriter")
