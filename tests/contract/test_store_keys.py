"""The BlockStore contract, over every adapter: what an index in memory is made of and kept true by."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from adapters.decorators.fault_injection import FaultInjectingBlockStore, FaultPlan
from adapters.memory.block_store import MemoryBlockStore
from application.ports.block_store import BlockStore, PutOutcome
from domain.prefix.record import NamespaceInfo, RecordKey
from tests.contract.test_block_store import ADAPTERS, ONE, TWO, put
from tests.support.stores.store_records import chain, keys_of, snapshot


@pytest.fixture(params=ADAPTERS)
def store(request: pytest.FixtureRequest, store_path: Path) -> Iterator[BlockStore]:
    store = ADAPTERS[request.param](store_path)
    yield store
    store.close()


class Index:
    """What somebody who watches knows of a namespace."""

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


def test_what_is_deleted_is_reported_with_all_that_follows_it(store: BlockStore) -> None:
    blocks = chain(ONE, 4)
    assert put(store, [*blocks, snapshot(blocks[2], [1])]) is PutOutcome.STORED
    index = Index(store, ONE)
    assert len(index.keys) == 5
    store.delete([blocks[1].key])
    assert index.keys == {blocks[0].key}
    assert index.is_true


def test_what_is_evicted_is_reported(store: BlockStore) -> None:
    index = Index(store, ONE)
    for seed in range(40):
        record = chain(ONE, 1, seed=seed, size_bytes=100_000)[0]
        index.keys.add(record.key)
        assert put(store, [record]) is PutOutcome.STORED
    assert len(index.keys) == 40 - store.usage().evicted < 40
    assert index.is_true


def test_an_erased_store_is_not_what_it_was(store: BlockStore) -> None:
    assert put(store, chain(ONE, 2)) is put(store, chain(TWO, 2)) is PutOutcome.STORED
    index = Index(store, ONE)
    store.erase(lambda info: info.namespace == TWO.namespace)
    assert index.is_true
    assert len(index.keys) == 2
    store.erase()
    assert index.is_true
    assert not index.keys


def test_a_store_that_comes_back_is_read_again() -> None:
    store = FaultInjectingBlockStore(MemoryBlockStore(), FaultPlan())
    assert store.put(chain(ONE, 2)) is PutOutcome.STORED
    index = Index(store, ONE)
    store.is_down = True
    assert index.is_true
    assert not index.keys
    store.is_down = False
    assert index.is_true
    assert len(index.keys) == 2
