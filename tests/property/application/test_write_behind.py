"""The queue in front of a store against a plain account of it: after any sequence of steps they agree.

A record is there while a copy of it waits, is being written, or is stored; deleting takes it from all three places.
"""

from collections.abc import Callable, Sequence

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from adapters.memory.block_store import MemoryBlockStore
from application.ports.block_store import PutOutcome
from application.services.prefix.indexes import Indexes
from application.services.prefix.write_behind import QUEUE_FULL
from domain.ids import BlockHash
from domain.prefix.index import QUEUED, STORED
from domain.prefix.record import BlockKey, Namespace, Record, RecordKey
from tests.support.effort import drawn
from tests.support.stores.forwarding_store import ForwardingStore
from tests.support.stores.stepped_writer import SteppedWriter
from tests.support.stores.store_records import chain, keys_of, namespace_of, same, snapshot

ONE, TWO = namespace_of("one"), namespace_of("two")
RECORD_BYTES = 96
MAX_BYTES = 8 * RECORD_BYTES


def forest() -> list[Record]:
    """Chains that branch, with snapshots, in two namespaces; parents first."""
    records: list[Record] = []
    for info in (ONE, TWO):
        trunk = chain(info, 3, size_bytes=64)
        records += [*trunk, snapshot(info, [1], size_bytes=96), snapshot(trunk[1], [], size_bytes=96)]
        branch = chain(info, 2, seed=1, size_bytes=64, after=trunk[0])
        records += [*branch, snapshot(branch[1], [2], size_bytes=96)]
    return records


RECORDS = forest()
BY_KEY = {record.key: record for record in RECORDS}
indexes = st.integers(0, len(RECORDS) - 1)


def above(record: Record) -> RecordKey | None:
    """What it hangs on; None for the namespace itself."""
    is_first = record.parent == BlockHash(record.key.namespace)
    return None if is_first else BlockKey(record.key.namespace, record.parent)


def is_below(key: RecordKey, top: RecordKey) -> bool:
    at: RecordKey | None = key
    while at is not None and at != top:
        at = above(BY_KEY[at])
    return at == top


class RefusingStore(ForwardingStore):
    """While `is_down` nothing is stored; all else goes on."""

    is_down = False

    def put(self, records: Sequence[Record]) -> PutOutcome:
        return PutOutcome.UNAVAILABLE if self.is_down else super().put(records)


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryBlockStore()
        self.store = RefusingStore(self.memory)
        self.writer = SteppedWriter(self.store, MAX_BYTES)
        self.indexes = Indexes(self.store.keys)
        self.epochs = [self.indexes.epoch(info) for info in (ONE, TWO)]
        self.writer.report_to(self.indexes)
        self.waiting: list[list[RecordKey]] = []
        self.written: list[RecordKey] | None = None
        self.outcome: PutOutcome | None = None
        self.stored: set[RecordKey] = set()
        self.severed: set[RecordKey] = set()
        self.stale: set[RecordKey] = set()
        self.num_enqueued = self.num_persisted = self.num_refused = self.num_dropped = 0

    @rule(first=indexes, number=st.integers(1, 4), with_parents=st.booleans())
    def offer(self, first: int, number: int, with_parents: bool) -> None:
        info = ONE if RECORDS[first].key.namespace == ONE.namespace else TWO
        batch = [record for record in RECORDS[first : first + number] if record.key.namespace == info.namespace]
        if with_parents:
            batch = [record for record in RECORDS if any(is_below(other.key, record.key) for other in batch)]
        keys = keys_of(batch)
        outer = {above(record) for record in batch} - set(keys)
        queued = sum(map(len, self.waiting)) + len(self.written or ())
        is_full = bool(self.waiting) and (queued + len(batch)) * RECORD_BYTES > MAX_BYTES
        assert self.writer.offer(info, batch) == (not outer & self.severed and not is_full)
        if outer & self.severed or is_full:
            self.severed |= set(keys)
            self.num_refused += len(keys)
        else:
            self.waiting.append(keys)
            self.severed -= set(keys)
            self.num_enqueued += len(keys)

    @rule(number=st.integers(1, 6))
    def write(self, number: int) -> None:
        for _ in range(number):
            self.writer.step()
            self.step()

    def step(self) -> None:
        """Take, put or settle."""
        if self.written is None:
            self.written = self.waiting.pop(0) if self.waiting else None
        elif self.outcome is None:
            self.outcome = self.put(self.written)
        else:
            self.settle()

    @rule(index=indexes)
    def delete(self, index: int) -> None:
        top = RECORDS[index].key
        doomed = {key for key in BY_KEY if is_below(key, top)}
        self.remove(self.linked(top), doomed, lambda: self.writer.delete([top]))

    @rule(namespace=st.sampled_from([ONE.namespace, TWO.namespace]))
    def erase(self, namespace: Namespace) -> None:
        doomed = {key for key in BY_KEY if key.namespace == namespace}
        self.remove(doomed, doomed, lambda: self.writer.erase(lambda info: info.namespace == namespace))

    @rule(index=indexes)
    def lose(self, index: int) -> None:
        """The store lets something go by itself."""
        self.memory.delete([RECORDS[index].key])
        gone = {key for key in self.stored if is_below(key, RECORDS[index].key)}
        self.stored -= gone
        self.stale |= gone & set(self.written or ())

    @rule()
    def toggle(self) -> None:
        self.store.is_down = not self.store.is_down

    def put(self, keys: list[RecordKey]) -> PutOutcome:
        if self.store.is_down:
            return PutOutcome.UNAVAILABLE
        known = set(self.stored)
        for key in keys:
            parent = above(BY_KEY[key])
            if parent is not None and parent not in known:
                return PutOutcome.ORPHAN
            known.add(key)
        self.stored = known
        return PutOutcome.STORED

    def settle(self) -> None:
        assert self.written is not None
        if self.outcome is PutOutcome.STORED:
            self.num_persisted += len(self.written)
        else:
            self.num_dropped += len(self.written)
            self.severed |= set(self.written)
        self.written = self.outcome = None

    def linked(self, top: RecordKey) -> set[RecordKey]:
        """What hangs on `top` by way of records in the queue."""
        queued = {key for offer in [*self.waiting, self.written or []] for key in offer}
        found = {top}
        while more := {key for key in queued - found if above(BY_KEY[key]) in found}:
            found |= more
        return found & queued

    def remove(self, linked: set[RecordKey], doomed: set[RecordKey], delete: Callable[[], object]) -> None:
        """`linked`: what of `doomed` the queue knows to be. What is being written ends first, stored or not."""
        self.withdraw(linked)
        self.finish(linked)
        self.stored -= doomed
        delete()

    def finish(self, keys: set[RecordKey]) -> None:
        if self.written is not None and keys & set(self.written):
            if self.outcome is None:
                self.outcome = self.put(self.written)
            self.settle()

    def withdraw(self, keys: set[RecordKey]) -> None:
        gone = [key for offer in self.waiting for key in offer if key in keys]
        self.waiting = [kept for offer in self.waiting if (kept := [key for key in offer if key not in keys])]
        self.severed |= set(gone)
        self.num_dropped += len(gone)

    @invariant()
    def what_is_queued_or_stored_is_there_and_nothing_else(self) -> None:
        queued = {key for offer in [*self.waiting, self.written or []] for key in offer}
        there = queued | self.stored
        written = set(self.written or ())
        for key, read, places in zip(BY_KEY, self.writer.get(list(BY_KEY)), self.places(), strict=True):
            assert (key in there) == same(read, BY_KEY[key]), key
            assert bool(places & QUEUED) == (key in queued)
            # What is stored is known when it is settled, and what went in between when it is read.
            assert key in written or key in self.stale or bool(places & STORED) == (key in self.stored)

    def places(self) -> list[int]:
        one, two = ([key for key in BY_KEY if key.namespace == info.namespace] for info in (ONE, TWO))
        return [*self.indexes.places(one), *self.indexes.places(two)]

    @invariant()
    def everything_is_accounted_for(self) -> None:
        counts = self.writer.counts()
        queued = sum(map(len, self.waiting)) + len(self.written or ())
        assert (counts.queued, counts.queued_bytes) == (queued, queued * RECORD_BYTES)
        assert (counts.enqueued, counts.persisted) == (self.num_enqueued, self.num_persisted)
        assert counts.dropped.get(QUEUE_FULL, 0) == self.num_refused
        assert sum(counts.dropped.values()) == self.num_refused + self.num_dropped
        assert self.memory.check_integrity().problems == ()

    def teardown(self) -> None:
        self.writer.pump()
        assert self.writer.counts().queued == 0


TestWriteBehind = QueueMachine.TestCase
TestWriteBehind.settings = settings(max_examples=drawn(60), stateful_step_count=40, deadline=None)
