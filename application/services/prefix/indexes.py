"""The prefix indexes of all namespaces, one an epoch, behind one lock.

A namespace begins a new epoch when it is cleared. A sequence belongs to the epoch in which it was looked up: its
records are kept only until that epoch ends, and clearing ends epochs before it removes anything. So nothing that was
cleared comes back, not even from a request that is still running.

A worker reads the keys that the store has of a namespace when a model is loaded or a salt is first used:

    unknown ──load──► loading ──► known ──what is stored may be anything (note_gone(None))──► unknown
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import groupby
from threading import Lock, RLock
from weakref import WeakValueDictionary

from domain.prefix.hashing import BlockChain
from domain.prefix.index import ANYWHERE, NOTHING_SHARED, STORED, PrefixIndex, PrefixMatch, ReuseRules, SharedRecords
from domain.prefix.record import Namespace, NamespaceInfo, RecordKey

MAX_NAMESPACES = 1_024
"""Namespaces whose index is kept without records in memory; the index of others is read again at their next use."""

KEYS_AT_ONCE = 2_048
"""Keys that a load adds at once; lookups and captures run in between."""


class Indexes:
    """The indexes by namespace. Any thread. `read_keys` returns the keys that are stored; None: there is no store."""

    def __init__(self, read_keys: Callable[[Namespace], Sequence[RecordKey]] | None = None) -> None:
        self._read_keys = read_keys
        # Tiers take the second while they hold their own, and `lasting` holds the first while tiers are called.
        self._ending, self._lock = RLock(), Lock()
        self._recent: OrderedDict[Namespace, PrefixIndex] = OrderedDict()
        self._epochs: WeakValueDictionary[Namespace, PrefixIndex] = WeakValueDictionary()
        self._num_renewed = 0
        self._removals: list[set[RecordKey]] = []

    def epoch(self, info: NamespaceInfo) -> PrefixIndex:
        """Returns the present epoch of a namespace, which begins with its first use."""
        with self._lock:
            epoch = self._epochs.get(info.namespace) or PrefixIndex(info, is_known=self._read_keys is None)
            epoch.infos.add(info)
            epoch.info = info
            self._epochs[info.namespace] = self._recent[info.namespace] = epoch
            self._recent.move_to_end(info.namespace)
            if len(self._recent) > MAX_NAMESPACES:
                idle = (name for name, one in self._recent.items() if not one.num_in_memory and one is not epoch)
                if (oldest := next(idle, None)) is not None:
                    del self._recent[oldest]
            return epoch

    def keys(self, epoch: PrefixIndex) -> list[RecordKey]:
        """Returns the keys of all records of an epoch."""
        with self._lock:
            return epoch.keys()

    def load(self, epoch: PrefixIndex) -> None:
        """Reads the keys of all stored records of the namespace. Blocks for the store."""
        if epoch.is_known or epoch.is_over or self._read_keys is None:
            return
        number = self._num_renewed
        with self.removals() as gone:
            keys = self._read_keys(epoch.namespace)
            for at in range(0, len(keys), KEYS_AT_ONCE):
                with self._lock:
                    if number != self._num_renewed:
                        return
                    epoch.add([key for key in keys[at : at + KEYS_AT_ONCE] if key not in gone], STORED)
            with self._lock:
                epoch.is_known = number == self._num_renewed

    def add(self, keys: Iterable[RecordKey], place: int) -> None:
        """Add records to a place."""
        with self._lock:
            for epoch, own in self._by_epoch(keys):
                epoch.add(own, place)
                self._recent.setdefault(epoch.namespace, epoch)  # a sequence may outlive its place

    @contextmanager
    def removals(self) -> Generator[Collection[RecordKey]]:
        """Yields a growing set of the keys of records that leave the store until the block ends."""
        gone: set[RecordKey] = set()
        with self._lock:
            self._removals.append(gone)
        try:
            yield gone
        finally:
            with self._lock:
                self._removals = [one for one in self._removals if one is not gone]

    def remove(self, keys: Iterable[RecordKey], place: int) -> None:
        """Remove records from a place."""
        with self._lock:
            for epoch, own in self._by_epoch(keys):
                epoch.remove(own, place)

    def note_gone(self, keys: Sequence[RecordKey] | None) -> None:
        """Remove records that left the store; the callback for `StoreAdministration.watch`."""
        with self._lock:
            if keys is None:
                self._num_renewed += 1
                for epoch in list(self._epochs.values()):
                    epoch.remove_all(STORED)
                    epoch.is_known = False
                return
            for gone in self._removals:
                gone.update(keys)
            for epoch, own in self._by_epoch(keys):
                epoch.remove(own, STORED)

    def places(self, keys: Sequence[RecordKey]) -> list[int]:
        """The places of each record, as bits (HOT, QUEUED, STORED). All of one namespace."""
        with self._lock:
            epoch = self._epochs.get(keys[0].namespace) if keys else None
            return [epoch.places(key) for key in keys] if epoch is not None else [0] * len(keys)

    def match(
        self,
        epoch: PrefixIndex,
        chain: BlockChain,
        rules: ReuseRules,
        absent: Collection[RecordKey] = (),
        place: int = ANYWHERE,
        shared: SharedRecords = NOTHING_SHARED,
    ) -> PrefixMatch:
        """Matches a prompt in one namespace, as `PrefixIndex.match`."""
        with self._lock:
            return epoch.match(chain, rules, absent, place, shared)

    @contextmanager
    def lasting(self, epoch: PrefixIndex) -> Generator[bool]:
        """Yields whether records of the epoch may be kept. It cannot end inside the block, so do no I/O there."""
        with self._ending:
            yield not epoch.is_over

    def end(self, includes: Callable[[NamespaceInfo], bool]) -> list[Namespace]:
        """Clear the indexes of these namespaces and end their epochs; returns which ones there were."""
        with self._ending, self._lock:
            ended = [epoch for epoch in list(self._epochs.values()) if any(map(includes, epoch.infos))]
            for epoch in ended:
                epoch.is_over = True
                self._epochs.pop(epoch.namespace, None)
                self._recent.pop(epoch.namespace, None)
            return [epoch.namespace for epoch in ended]

    def _by_epoch(self, keys: Iterable[RecordKey]) -> list[tuple[PrefixIndex, list[RecordKey]]]:
        found = [(self._epochs.get(name), list(own)) for name, own in groupby(keys, key=lambda key: key.namespace)]
        return [(epoch, own) for epoch, own in found if epoch is not None]
