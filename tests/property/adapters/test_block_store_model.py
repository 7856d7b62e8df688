"""A block store against a dictionary: after any sequence of operations they agree, and the store is sound.

The model knows what may be evicted and what may not; what the store still has must be right, whole chains, within the
quota, and everything that was never under pressure must be there.
"""

import shutil
import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from adapters.fake.environment import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.memory.block_store import MemoryBlockStore
from adapters.zstd.codec import ZstdStateCodec
from application.ports.block_store import BlockStore, PutOutcome
from domain.ids import BlockHash
from domain.prefix.record import BlockKey, NamespaceInfo, Record, RecordKey
from tests.support.effort import drawn
from tests.support.processes.processes import fast_folder
from tests.support.stores.store_records import chain, empty, held, keys_of, namespace_of, same, snapshot
from tests.support.telemetry.recording import RecordingEvents

SPACES = [namespace_of("one"), namespace_of("two")]
SIZES = [0, 100, 1500, 110_000, 110_000, 110_000, 110_000]


def forest() -> list[Record]:
    """Chains that branch, with snapshots, in two namespaces; parents first."""
    records: list[Record] = []
    for info in SPACES:
        trunk = chain(info, 4, size_bytes=SIZES[2])
        records += [*trunk, snapshot(info, [1]), snapshot(trunk[0], [], size_bytes=30_000)]
        for number, size_bytes in enumerate(SIZES):
            branch = chain(info, 2, seed=number + 1, size_bytes=size_bytes, after=trunk[number % 4])
            records += [*branch, snapshot(branch[1], [number, 2], size_bytes=size_bytes)]
    return records


def raw_bytes(records: Iterable[Record]) -> int:
    return sum(payload.size_bytes for record in records for payload in record.groups.values())


RECORDS = forest()
indexes = st.integers(0, len(RECORDS) - 1)
picks = st.lists(indexes, min_size=1, max_size=4)


class StoreMachine(RuleBasedStateMachine):
    quota_bytes = 1 << 20

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="cairn-model-", dir=fast_folder(Path(tempfile.gettempdir()))))
        self.model: dict[RecordKey, Record] = {}
        self.reads: list[AbstractContextManager[None]] = []
        self.being_read: set[RecordKey] = set()
        self.seen_evicted = 0
        self.store: BlockStore = self.open()

    def open(self) -> BlockStore:
        options = LmdbOptions(self.quota_bytes, num_threads=1)
        return LmdbBlockStore(self.folder / "store", options, ZstdStateCodec(), RecordingEvents(), FakeClock())

    @initialize()
    def announce(self) -> None:
        for info in SPACES:
            self.store.open_namespace(info)

    @rule(picked=picks, with_parents=st.booleans())
    def put(self, picked: list[int], with_parents: bool) -> None:
        batch = [RECORDS[index] for index in sorted(picked)]
        if with_parents:
            batch = [*self.ancestors(batch[0]), *batch]
        self.settle()
        outcome = self.store.put(batch)
        if outcome is PutOutcome.ORPHAN:
            assert not self.can_put(batch)
        elif outcome is PutOutcome.STORED:
            self.model.update({record.key: record for record in batch if record.key not in self.model})
            assert self.can_put(batch)
            for record, found in zip(batch, self.store.get(keys_of(batch)), strict=True):
                assert same(found, record)
        else:
            assert outcome is PutOutcome.FULL
            assert self.reads or raw_bytes(batch) > self.quota_bytes // 3

    @rule(picked=st.lists(indexes, min_size=4, max_size=12))
    def put_much(self, picked: list[int]) -> None:
        for index in picked:
            self.put([index], True)

    @rule(picked=picks)
    def get(self, picked: list[int]) -> None:
        batch = [RECORDS[index] for index in picked]
        for record, found in zip(batch, self.store.get(keys_of(batch)), strict=True):
            assert found is None or (record.key in self.model and same(found, record))

    @rule(picked=picks)
    def touch(self, picked: list[int]) -> None:
        self.store.touch([RECORDS[index].key for index in picked])

    @rule(index=indexes)
    def delete(self, index: int) -> None:
        self.settle()
        key = RECORDS[index].key
        gone = {other for other in self.model if other == key or key in self.lineage(other)}
        assert self.store.delete([key]) == len(gone)
        for other in gone:
            del self.model[other]

    @rule(info=st.sampled_from(SPACES))
    def delete_namespace(self, info: NamespaceInfo) -> None:
        self.settle()
        gone = [key for key in self.model if key.namespace == info.namespace]
        assert empty(self.store, info) == len(gone)
        for key in gone:
            del self.model[key]

    @rule()
    def flush(self) -> None:
        self.store.flush()

    def can_put(self, batch: list[Record]) -> bool:
        known = set(self.model)
        for record in batch:
            parent = BlockKey(record.key.namespace, record.parent)
            if record.parent != BlockHash(record.key.namespace) and parent not in known:
                return False
            known.add(record.key)
        return True

    def ancestors(self, record: Record) -> list[Record]:
        by_key = {other.key: other for other in RECORDS}
        return [by_key[key] for key in reversed(self.lineage(record.key))]

    def lineage(self, key: RecordKey) -> list[RecordKey]:
        """Ancestors, the nearest first."""
        by_key = {other.key: other for other in RECORDS}
        found: list[RecordKey] = []
        parent = BlockKey(key.namespace, by_key[key].parent)
        while parent in by_key:
            found.append(parent)
            parent = BlockKey(key.namespace, by_key[parent].parent)
        return found

    def settle(self) -> None:
        """Take evictions over into the model: what went must have been free to go."""
        gone = [key for key in self.model if not self.has(key)]
        assert not self.being_read & set(gone)
        evicted = self.store.usage().evicted
        assert len(gone) == evicted - self.seen_evicted
        self.seen_evicted = evicted
        for key in gone:
            del self.model[key]

    def has(self, key: RecordKey) -> bool:
        return held(self.store, [key])[0]

    @invariant()
    def is_sound(self) -> None:
        self.settle()
        report = self.store.check_integrity(payloads=True)
        assert report.problems == ()
        assert report.num_records == len(self.model)
        usage = self.store.usage()
        assert usage.stored_bytes <= self.quota_bytes
        assert sum(space.stored_bytes for space in usage.namespaces) <= usage.stored_bytes
        assert {space.info.namespace for space in usage.namespaces} == {key.namespace for key in self.model}
        blocks = sum(isinstance(key, BlockKey) for key in self.model)
        assert sum(space.num_blocks for space in usage.namespaces) == blocks
        assert sum(space.raw_bytes for space in usage.namespaces) == raw_bytes(self.model.values())
        for key in self.model:
            assert all(ancestor in self.model for ancestor in self.lineage(key))

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class LmdbMachine(StoreMachine):
    @rule(picked=picks)
    def begin_reading(self, picked: list[int]) -> None:
        keys = [RECORDS[index].key for index in picked]
        assert isinstance(self.store, LmdbBlockStore)
        self.reads.append(self.store._uses.reading(keys))
        self.reads[-1].__enter__()
        self.being_read = set(self.store._uses.kept())

    @precondition(lambda self: self.reads)
    @rule()
    def end_reading(self) -> None:
        self.settle()
        assert isinstance(self.store, LmdbBlockStore)
        self.reads.pop().__exit__(None, None, None)
        self.being_read = set(self.store._uses.kept())

    @rule()
    def reopen(self) -> None:
        self.settle()
        self.store.close()
        self.store = self.open()
        self.seen_evicted = 0
        self.being_read, self.reads = set(), []

    @rule()
    def compact(self) -> None:
        assert isinstance(self.store, LmdbBlockStore)
        assert self.store.compact().after_bytes <= self.quota_bytes


class MemoryMachine(StoreMachine):
    quota_bytes = 600_000

    def open(self) -> BlockStore:
        return MemoryBlockStore(self.quota_bytes)


machine_settings = settings(
    max_examples=drawn(60), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLmdbBlockStore = LmdbMachine.TestCase
TestLmdbBlockStore.settings = machine_settings
TestMemoryBlockStore = MemoryMachine.TestCase
TestMemoryBlockStore.settings = machine_settings
