"""The BlockStore contract, over every adapter: keys and reports of removed ones, erasing, and invalid arguments."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.memory.block_store import MemoryBlockStore
from application.ports.block_store import BlockStore, PutOutcome
from domain.ids import BlockHash, GroupIndex
from domain.prefix.fingerprint import NamespaceFilter
from domain.prefix.record import BlockKey, Namespace, NamespaceInfo, RecordKey, SnapshotKey
from tests.contract.store.test_block_store import ADAPTERS, ONE, present, put
from tests.support.stores.faulty_stores import FaultInjectingBlockStore, FaultPlan
from tests.support.stores.store_records import chain, keys_of, namespace_of, payload_of, snapshot

TWO = namespace_of("two?salt=alice")


@pytest.fixture(params=ADAPTERS)
def store(request: pytest.FixtureRequest, store_path: Path) -> Iterator[BlockStore]:
    store = ADAPTERS[request.param](store_path)
    store.open_namespace(ONE)
    store.open_namespace(TWO)
    yield store
    problems, faults = store.check_integrity(payloads=True).problems, set(store.usage().faults)
    store.close()
    assert problems == ()
    assert faults <= {"injected"}


class Index:
    """The facts about a namespace that an observer sees."""

    def __init__(self, store: BlockStore, info: NamespaceInfo) -> None:
        self._store, self._info = store, info
        self.keys = set(store.keys(info.namespace))
        self.is_outdated = False
        store.watch(self._note_gone)

    def _note_gone(self, keys: Sequence[RecordKey] | None) -> None:
        self.is_outdated |= keys is None
        self.keys -= set(keys or ())

    @property
    def is_true(self) -> bool:
        if self.is_outdated:
            self.keys, self.is_outdated = set(self._store.keys(self._info.namespace)), False
        return self.keys == set(self._store.keys(self._info.namespace))


def test_all_keys_of_a_namespace_are_listed_and_no_others(store: BlockStore) -> None:
    blocks, others = chain(ONE, 3), chain(TWO, 2)
    records = [*blocks, snapshot(blocks[1], [7, 8]), snapshot(ONE, [3])]
    assert store.keys(ONE.namespace) == []
    assert put(store, records) is put(store, others) is PutOutcome.STORED
    assert sorted(store.keys(ONE.namespace), key=repr) == sorted(keys_of(records), key=repr)
    assert set(store.keys(TWO.namespace)) == set(keys_of(others))
    store.close()
    assert list(store.keys(ONE.namespace)) == []


def test_deleted_records_are_reported_with_following_ones(store: BlockStore) -> None:
    blocks = chain(ONE, 4)
    assert put(store, [*blocks, snapshot(blocks[2], [1])]) is PutOutcome.STORED
    index = Index(store, ONE)
    assert len(index.keys) == 5
    store.delete([blocks[1].key])
    assert index.keys == {blocks[0].key}
    assert index.is_true


def test_evicted_records_are_reported(store: BlockStore) -> None:
    index = Index(store, ONE)
    for seed in range(40):
        record = chain(ONE, 1, seed=seed, size_bytes=100_000)[0]
        index.keys.add(record.key)
        assert put(store, [record]) is PutOutcome.STORED
    assert len(index.keys) == 40 - store.usage().evicted < 40
    assert index.is_true


def test_an_erased_store_reports_that_its_keys_changed(store: BlockStore) -> None:
    assert put(store, chain(ONE, 2)) is put(store, chain(TWO, 2)) is PutOutcome.STORED
    index = Index(store, ONE)
    store.erase(lambda info: info.namespace == TWO.namespace)
    assert index.is_true
    assert len(index.keys) == 2
    store.erase()
    assert index.is_true
    assert not index.keys


def test_keys_are_read_again_after_an_outage() -> None:
    store = FaultInjectingBlockStore(MemoryBlockStore(), FaultPlan())
    assert store.put(chain(ONE, 2)) is PutOutcome.STORED
    index = Index(store, ONE)
    store.is_down = True
    assert index.is_true
    assert not index.keys
    store.is_down = False
    assert index.is_true
    assert len(index.keys) == 2


def is_two(info: NamespaceInfo) -> bool:
    return info == TWO


def test_erasing_a_namespace_keeps_the_others(store: BlockStore) -> None:
    mine, theirs = chain(ONE, 3), chain(TWO, 3)
    hanging = [snapshot(theirs[1], [1]), snapshot(TWO, [2])]
    for records in (mine, [*theirs, *hanging]):
        assert put(store, records) is PutOutcome.STORED
    report = store.erase(is_two)
    assert (report.num_records, report.problem) == (5, "")
    assert report.num_bytes > 0
    assert present(store, [*mine, *theirs]) == [True] * 3 + [False] * 3
    assert put(store, theirs) is PutOutcome.STORED
    assert present(store, theirs) == [True] * 3


def test_an_erased_store_can_be_used(store: BlockStore) -> None:
    mine, theirs = chain(ONE, 3, size_bytes=50_000), chain(TWO, 2)
    for records in (mine, theirs):
        assert put(store, records) is PutOutcome.STORED
    report = store.erase()
    assert (report.num_records, report.problem) == (5, "")
    assert present(store, [*mine, *theirs]) == [False] * 5
    assert sum(space.num_blocks for space in store.usage().namespaces) == 0
    store.touch(keys_of(mine))
    store.flush()
    for records in (theirs, mine):
        assert put(store, records) is PutOutcome.STORED
    assert present(store, [*mine, *theirs]) == [True] * 5
    assert store.erase().num_records == 5
    assert store.erase().num_records == 0


def test_erasing_a_closed_store_reports_a_problem(store: BlockStore) -> None:
    assert put(store, chain(ONE, 1)) is PutOutcome.STORED
    store.close()
    report = store.erase()
    assert report.num_records == 0
    assert report.problem


def test_a_tenant_is_chosen_by_its_salt_and_a_model_by_its_name() -> None:
    assert [NamespaceFilter.of(None, salt, "").includes(ONE) for salt in (None, "", "alice")] == [True, True, False]
    assert [NamespaceFilter.of(None, salt, "").includes(TWO) for salt in (None, "", "alice")] == [True, False, True]
    assert not NamespaceFilter.of(None, "alice", "the server's own").includes(TWO)
    names = ("one", ONE.namespace.hex()[:6], "two", "")
    assert [NamespaceFilter(name).includes(ONE) for name in names] == [True, True, False, False]


LONG, SHORT = b"x" * 600, b"x" * 31

REFUSED: dict[str, Callable[[BlockStore, bytes], object]] = {
    "keys": lambda store, hash: store.keys(Namespace(hash)),
    "get": lambda store, hash: store.get([BlockKey(ONE.namespace, BlockHash(hash))]),
    "get-snapshot": lambda store, digest: store.get([SnapshotKey(ONE.namespace, BlockHash(ONE.namespace), 1, digest)]),
    "delete": lambda store, hash: store.delete([BlockKey(ONE.namespace, BlockHash(hash))]),
    "followers": lambda store, hash: store.followers(ONE.namespace, BlockHash(hash), 1),
    "followers-namespace": lambda store, name: store.followers(Namespace(name), BlockHash(ONE.namespace), 1),
    "open-namespace": lambda store, name: store.open_namespace(NamespaceInfo(Namespace(name), "m", "{}")),
    "put-parent": lambda store, hash: store.put([replace(chain(ONE, 1)[0], parent=BlockHash(hash))]),
    "put-namespace": lambda store, name: store.put(chain(NamespaceInfo(Namespace(name), "m", "{}"), 1)),
}


@pytest.mark.parametrize("length", [LONG, SHORT], ids=["long", "short"])
@pytest.mark.parametrize("call", REFUSED)
def test_an_identifier_of_another_length_is_an_error_of_the_caller_and_never_damage(
    store: BlockStore, call: str, length: bytes
) -> None:
    before = chain(ONE, 2)
    assert put(store, before) is PutOutcome.STORED
    with pytest.raises(ValueError, match="must have 32"):
        REFUSED[call](store, length)
    assert present(store, before) == [True, True]


@pytest.mark.parametrize(
    "wrong",
    [
        {"position": -1},
        {"position": 1 << 64},
        {"groups": {GroupIndex(1 << 16): payload_of(b"", 2)}},
    ],
    ids=["position-negative", "position-too-large", "group-too-large"],
)
def test_an_invalid_record_is_an_error_of_the_caller(store: BlockStore, wrong: dict[str, object]) -> None:
    before = chain(ONE, 2)
    assert put(store, before[:1]) is PutOutcome.STORED
    with pytest.raises(ValueError, match="must be"):
        store.put([replace(before[1], **wrong)])
    assert put(store, before) is PutOutcome.STORED


def test_a_snapshot_with_another_parent_is_refused(store: BlockStore) -> None:
    """Elsewhere it would count as hanging on one block and be listed under another."""
    blocks = chain(ONE, 2)
    misplaced = snapshot(blocks[1], [1])
    assert put(store, blocks) is PutOutcome.STORED
    with pytest.raises(ValueError, match="parent"):
        store.put([replace(misplaced, parent=BlockHash(ONE.namespace))])
